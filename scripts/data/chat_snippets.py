"""Own small templates and expressions for make_chat_data.py: one or more for each row of the
feature list in server/chat/README.md, and the corners where Python's semantics show."""

M = [{"role": "system", "content": " sys "}, {"role": "user", "content": "hi"},
     {"role": "assistant", "content": "<t>deep</t>\n\nyo\n",
      "calls": [{"name": "f", "args": {"b": 1, "A": "x", "c": [True, None, 2.5]}}]},
     {"role": "tool", "content": "42", "id": "c1"}, {"role": "user", "content": "bye"}]
SPEC = {"properties": {"Zed": {"type": "string", "enum": ["p", "q"]},
                       "alpha": {"type": ["integer", "null"], "description": "d"},
                       "deep": {"type": "object", "properties": {"in": {"type": "array",
                                                                        "items": {"type": "x"}}},
                                "required": ["in"]}}, "required": ["Zed"]}
T = {"m": M, "spec": SPEC, "add_generation_prompt": True}

# (name, source, variables)
OWN = [
    # system block taken out by slicing, default date, tools filtered and joined
    ("slice first", """{%- if m[0]['role'] == 'system' %}
    {%- set head = m[0]['content']|trim %}
    {%- set m = m[1:] %}
{%- else %}
    {%- set head = "" %}
{%- endif %}
{%- if not date is defined %}{%- set date = "1 Jan" %}{% endif %}
[{{ head }}|{{ date }}|{{ m | length }}]
{%- for t in m %}
    {{- '<' + t['role'] + '>' + t['content']|trim + ';' }}
{%- endfor %}
""", T),
    ("reject join", "{{ 'T: ' + names | reject('equalto', 'b') | join(', ') + '.' }}",
     {"names": ["a", "b", "c"]}),
    ("items unpack", "{% for k, v in spec.properties|items %}{{ k }}={{ v.type }}"
                     "{% if not loop.last %}, {% endif %}{% endfor %}", T),
    ("tojson indent", "{% for t in m %}{{ t | tojson(indent=4) }}\n{% endfor %}", T),
    ("neighbours by index", """{% for t in m %}
{% if loop.first or m[loop.index0 - 1].role != t.role %}+{% endif %}{{ t.role }}
{% if loop.last or (m[loop.index0 + 1].role != "tool") %}
end
{% endif %}
{% endfor %}""", T),
    ("split and strip", "{% for t in m %}{% set c = t.content %}{% if '</t>' in c %}"
                        "{% set c = c.split('</t>')[-1].lstrip('\\n') %}{% endif %}"
                        "[{{ c }}|{{ t.content.split('</t>')[0].rstrip('\\n').split('<t>')[-1] }}]"
                        "{% endfor %}", T),
    ("namespace over reversed", """{%- set ns = namespace(open=true, last=m|length - 1) %}
{%- for t in m[::-1] %}
    {%- set index = (m|length - 1) - loop.index0 %}
    {%- if ns.open and t.role == "user" and not(t.content.startswith('b') and t.content.endswith('e')) %}
        {%- set ns.open = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{{- ns.last }} {{ ns.open }} {{ index is defined }}""", T),
    ("loop variable replaced", "{% for t in m %}{% if t.calls %}{% for t in t.calls %}"
                               "{% set t = t.name %}{{ t }}{% endfor %}{% endif %}"
                               "{{ t.role }},{% endfor %}", T),
    ("false is not zero", "{% for x in xs %}{{ x is false }} {{ x is true }} {{ x is boolean }} "
                          "{{ x is number }} {{ x is integer }} {{ x is none }};{% endfor %}",
     {"xs": [False, True, 0, 1, 0.0, None, "", "false"]}),
    ("macro with filter loop", """{% macro put(x, sep=', ', quote="'") %}
{%- if x is string %}{{ quote ~ x ~ quote }}
{%- elif x is mapping %}{{ '{' }}{% for k, v in x|items %}{{ k ~ ': ' ~ put(v, quote='"') }}{% if not loop.last %}{{ sep }}{% endif %}{% endfor %}{{ '}' }}
{%- elif x is iterable %}[{% for v in x if v is not none %}{{ put(v, sep) }}{{ sep if not loop.last }}{% endfor %}]
{%- else %}{{ x }}{% endif %}
{%- endmacro %}
{{ put(spec) }}
{{ put(m[2], sep='; ') }}""", T),
    ("previtem nextitem", "{% for t in m %}{% if loop.previtem and loop.previtem.role != 'user' %}<"
                          "{% endif %}{{ t.role }}{% if not loop.last and loop.nextitem.role != 'user' %}>"
                          "{% endif %} {% endfor %}", T),
    ("literal newlines", "{{ 'a\n\nb' + '\n' }}{% set x = 'c\n' %}{{ x }}", {}),
    ("split with limit", "{{ s.split('-', 1)[1] }} {{ s.split('-', 1) | length }} {{ s.split('-') }}",
     {"s": "a-b-c"}),
    ("from_json", "{% set a = s | from_json %}{{ a.k[1] }} {% for k, v in a.items() %}{{ k }}{{ v }}"
                  "{% endfor %}{{ a | tojson }}", {"s": "{\"k\": [1, \"é\", null], \"z\": 1.50}"}),
    ("queue of ids", """{%- set q = namespace(ids=[]) -%}
{%- set n = namespace(value=0) -%}
{%- for t in m -%}
  {%- if t.get('calls') -%}
    {%- for c in t['calls'] -%}
      {%- set id = c['name'] + ':' + (n.value | string) -%}
      {%- set n.value = n.value + 1 -%}
      {%- set _ = q.ids.append(id) -%}
    {%- endfor -%}
  {%- elif t.role == 'tool' -%}
    {%- if q.ids -%}
      {%- set id = q.ids.pop(0) -%}
    {%- else -%}
      {%- set id = t.get('id', 'none') -%}
    {%- endif -%}
    ## {{ id }}
{{ t.get('name') or t['role'] }} {{ t.get('name', 'x') }}
  {%- endif -%}
  |
{%- endfor -%}
{{ q.ids }}{{ n.value }}""", T),
    ("range and computed slices", """{%- set ns = namespace(last=-1) -%}
{%- for i in range(m|length-1, -1, -1) -%}
    {%- if ns.last < 0 and m[i]['role'] == 'assistant' and not m[i].get('nope') -%}
        {%- set ns.last = i -%}
    {%- endif -%}
{%- endfor -%}
{{ ns.last }}:{{ m[:ns.last+1]|length }}:{{ m[ns.last+1:]|length }}{% for i in range(3) %} {{ i }}{% endfor %}""", T),
    ("mutual recursion", """{%- macro even(n, word='even') -%}{{ word if n == 0 else odd(n - 1, word=word) }}{%- endmacro -%}
{%- macro odd(n, word) -%}{{ '' if n == 0 else even(n - 1, word) }}{%- endmacro -%}
{{ even(10) }} [{{ even(7) }}] {{ even(2, word='E') }} {{ odd(3, 'o') }}""", {}),
    ("schema walk", """{%- macro walk(p, req) -%}
    {%- set ns = namespace(some=false) -%}
    {%- for key, value in p | dictsort -%}
        {%- if key not in ['required'] -%}
            {%- if ns.some %},{% endif -%}
            {%- set ns.some = true -%}
            {{ key }}:{
            {%- if value['description'] %}d:{{ value['description'] }},{% endif -%}
            {%- if value['type'] is string and value['type'] | upper == 'OBJECT' -%}
                {{- walk(value['properties'], value['required'] | default([])) -}},
            {%- elif value['items'] is mapping and value['items'] -%}
                items:{{ value['items']['type'] | upper }},
            {%- endif -%}
            {%- if value['type'] is not string %}t:{{ value['type'] | map('upper') | list }}{% else %}t:{{ value['type'] | upper }}{% endif -%}
            {{ '!' if key in req else '?' }}}
        {%- endif -%}
    {%- endfor -%}
{%- endmacro -%}
{{ walk(spec.properties, spec.required) }}""", T),
    ("modulo roles", "{% for t in m[1:] %}{% if (t['role'] == 'user') != (loop.index0 % 2 == 0) %}"
                     "{{ raise_exception('roles must alternate') }}{% endif %}{% endfor %}", T),
    ("modulo good", "{% for i in range(6) %}{{ i % 2 == 0 }}{{ -i % 4 }}{% endfor %}", {}),
    ("generation", "{% for t in m %}{% if t.role == 'assistant' %}\n{% generation %}\n{{ t.content }}"
                   "{% endgeneration %}\n{% else %}{{ t.role }}{% endif %}{% endfor %}", T),
    ("generation scope", "{% set a = 1 %}{% generation %}{% set a = 2 %}{{ a }}{% endgeneration %}{{ a }}", {}),
    ("for else", "{% for x in [] %}a{% else %}none{% endfor %}{% for x in [1] %}a{% else %}b{% endfor %}"
                 "{% for x in [1, 2] if x > 5 %}c{% else %}d{% endfor %}", {}),
    ("break continue", "{% for i in range(10) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}"
                       "{% break %}{% endif %}{{ i }}{% endfor %}.", {}),
    ("break skips else", "{% for i in [1] %}{% break %}{% else %}e{% endfor %}x", {}),
    ("loop attributes", "{% for x in 'abc' %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}"
                        "{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}"
                        "{{ loop.depth }}{{ loop.depth0 }}{{ loop.cycle('o', 'e') }}"
                        "{{ loop.previtem }}{{ loop.nextitem }} {% endfor %}", {}),
    ("loop changed", "{% for x in [1, 1, 2, 2, 1] %}{{ loop.changed(x) }} {% endfor %}", {}),
    ("inner loop hides", "{% for a in [1, 2] %}{% for b in [1] %}{{ loop.index }}{% endfor %}"
                         "{{ loop.index }}{% endfor %}", {}),
    ("filtered loop", "{% for a in range(9) if a is odd %}{{ a }}/{{ loop.index }}/{{ loop.length }}"
                      "{{ loop.last }} {% endfor %}", {}),
    ("scoping", "{% set x = 0 %}{% for i in [1, 2] %}{{ x }}{% set x = i %}{{ x }}{% endfor %}{{ x }}"
                "{% if true %}{% set x = 9 %}{% endif %}{{ x }}", {}),
    ("set block", "{% set a %}\n  <{{ 1 + 1 }}>\n{% endset %}[{{ a }}]{% set b | upper | trim %}  abc {% endset %}"
                  "[{{ b }}]{{ a is string }}", {}),
    ("set block scope", "{% set y = 1 %}{% set a %}{% set y = 2 %}{{ y }}{% endset %}{{ a }}{{ y }}", {}),
    ("set tuple", "{% set a, b = 1, 'x' %}{{ a }}{{ b }}{% set a, b = b, a %}{{ a }}{{ b }}"
                  "{% set t = 1, 2 %}{{ t }}", {}),
    ("set tuple mismatch", "{% set a, b = [1, 2, 3] %}", {}),
    ("namespace plain", "{% set x = {} %}{% set x.a = 1 %}", {}),
    ("namespace dict", "{% set n = namespace({'a': 1}, b=2) %}{{ n.a }}{{ n['b'] }}{{ n.c is defined }}", {}),
    ("with", "{% set a = 1 %}{% with a = 2, b = a %}{{ a }}{{ b }}{% set c = 3 %}{% endwith %}{{ a }}"
             "{{ c is defined }}", {}),
    ("filter block", "{% filter upper | trim %}  abc {{ 'd' }} {% endfilter %}|", {}),
    ("call block", "{% macro box(t) %}<{{ t }}>{{ caller() }}</{{ t }}>{% endmacro %}"
                   "{% call box('b') %}in{{ 1 }}{% endcall %}", {}),
    ("call block args", "{% macro each(xs) %}{% for x in xs %}{{ caller(x, loop.index) }}{% endfor %}"
                        "{% endmacro %}{% call(v, i) each([5, 6]) %}{{ i }}={{ v }};{% endcall %}", {}),
    ("varargs", "{% macro f(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, 3, k=4) }}"
                "{{ f() }}", {}),
    ("macro too many", "{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}", {}),
    ("macro keyword unknown", "{% macro f(a) %}{% endmacro %}{{ f(b=2) }}", {}),
    ("macro twice", "{% macro f(a) %}{% endmacro %}{{ f(1, a=2) }}", {}),
    ("macro default sees", "{% set d = 5 %}{% macro f(a, b=a, c=d) %}{{ a }}{{ b }}{{ c }}{% endmacro %}"
                           "{{ f(1) }}{% set d = 6 %}{{ f(2, 3) }}", {}),
    ("macro sees later set", "{% macro f() %}{{ late }}{% endmacro %}{{ f() }}{% set late = 7 %}{{ f() }}", {}),
    ("macro in loop", "{% for i in [1, 2] %}{% macro f() %}<{{ i }}>{% endmacro %}{{ f() }}{% endfor %}", {}),
    ("macro before use", "{{ f is defined }}{% macro f() %}x{% endmacro %}{{ f is defined }}{{ f() ~ 1 }}", {}),
    ("macro result is text", "{% macro f() %}5{% endmacro %}{{ f() is string }}{{ f() * 2 }}", {}),
    ("macro space", "{% macro f() -%}\n  a\n{%- endmacro %}[{{ f() }}]\n{% macro g() %}\n  b\n{% endmacro %}\n[{{ g() }}]", {}),
    ("cycler joiner", "{% set c = cycler('a', 'b') %}{% set j = joiner('|') %}"
                      "{% for i in range(3) %}{{ j() }}{{ c.next() }}{% endfor %}", {}),
    ("raw", "{% raw %}{{ x }} {% if %}{% endraw %}{{ 1 }}{%- raw -%}  a  {%- endraw -%}  b", {}),
    ("raw lstrip", "a\n   {% raw %}\n b\n   {% endraw %}\nc", {}),
    ("comments", "a{# x {{ y }} #}b\n  {# c #}\nd{#- e -#}  f {#+ g +#}\nh", {}),
    ("trailing newline", "a\n", {}),
    ("two trailing newlines", "a\n\n", {}),
    ("crlf", "a\r\n{% if true %}\r\nb\r\n{% endif %}\r\nc\rd", {}),
    ("braces in text", "{ {x} {{ '{{' }} }} %} #} {", {}),
    ("dict literal at the end", "{{ {'a': {'b': 1}}}}", {}),
    ("escapes in strings", r"""{{ 'a\tb\\n\'q\"\x41\u00e9\101\q' }}{{ "it's" }}{{ 'say "x"' }}""", {}),
    ("adjacent strings", "{{ 'a' 'b' \"c\" }}", {}),
    ("undefined prints nothing", "[{{ nope }}{{ m.nope }}{{ m[99] }}{{ {}.x }}]", T),
    ("undefined attribute", "{{ nope.x }}", {}),
    ("undefined item", "{{ nope['x'] }}", {}),
    ("undefined call", "{{ nope() }}", {}),
    ("undefined plus", "{{ nope + 'x' }}", {}),
    ("undefined loop", "{% for x in nope %}a{% else %}e{% endfor %}{{ nope ~ 'x' }}{{ nope|length }}", {}),
    ("none loop", "{% for x in none %}{% endfor %}", {}),
    ("dict methods hide keys", "{{ d.items is callable }}{{ d['items'] }}{{ e['items'] is mapping }}"
                               "{{ e['items'] is callable }}{{ e['nope'] is defined }}",
     {"d": {"items": "I"}, "e": {"x": 1}}),
    ("if chain", "{% for x in [0, 1, 2, 3] %}{% if x == 0 %}a{% elif x == 1 %}b{% elif x == 2 %}c"
                 "{% else %}d{% endif %}{% endfor %}", {}),
    ("raise", "{{ raise_exception('no ' ~ 1 ~ ' good') }}", {}),
    ("strftime", "{{ strftime_now('day') }}{{ strftime_now('%%') }}", {}),
    ("list methods", "{% set l = [3] %}{% set _ = l.append(1) %}{% set _ = l.extend([2, 5]) %}"
                     "{% set _ = l.insert(0, 9) %}{{ l }}{{ l.index(2) }}{{ l.pop() }}{{ l.pop(0) }}{{ l }}"
                     "{{ l.count(3) }}{% set _ = l.reverse() %}{{ l }}{% set _ = l.remove(3) %}{{ l }}", {}),
    ("dict methods", "{% set d = {'a': 1} %}{% set _ = d.update({'b': 2}) %}{% set _ = d.update(c=3) %}"
                     "{{ d }}{{ d.keys() }}{{ d.values() | list }}{{ d.items() }}{{ d.pop('a') }}"
                     "{{ d.pop('zz', 7) }}{{ d.get('q') }}{{ d.setdefault('k', 4) }}{{ d }}", {}),
    ("pop missing", "{{ {}.pop('a') }}", {}),
    ("append while walking", "{% set l = [1, 2] %}{% for x in l %}{% if x < 4 %}{% set _ = l.append(x + 2) %}"
                             "{% endif %}{{ x }}{% endfor %}", {}),
    ("generator once", "{% set g = [1, 2] | map('string') %}{{ g | join(',') }}|{{ g | join(',') }}", {}),
    ("generator length", "{{ [1] | map('string') | length }}", {}),
    ("sort things", "{{ ['b', 'A', 'c'] | sort }}{{ ['b', 'A', 'c'] | sort(case_sensitive=true) }}"
                    "{{ [3, 1, 2] | sort(reverse=true) }}{{ m | sort(attribute='role') | map(attribute='role') | join(' ') }}", T),
    ("sort mixed", "{{ [1, 'a'] | sort }}", {}),
    ("select things", "{{ m | selectattr('role', 'equalto', 'user') | map(attribute='content') | list }}"
                      "{{ m | rejectattr('calls') | list | length }}{{ m | selectattr('calls', 'defined') | list | length }}"
                      "{{ [0, 1, 2, ''] | select | list }}{{ [1, 2, 3] | select('odd') | list }}"
                      "{{ [1, 2, 3] | select('gt', 1) | list }}{{ [1, 2, 3] | reject('in', [2]) | list }}", T),
    ("map things", "{{ ['a', 'b'] | map('upper') | join }}{{ m | map(attribute='id', default='-') | join(',') }}"
                   "{{ ['a b', 'c'] | map('replace', ' ', '_') | list }}{{ [[1, 2], [3]] | map('length') | list }}"
                   "{{ [[1, 2], [3, 4]] | map(attribute=1) | list }}{{ m | map(attribute='calls.0.name', default=0) | list }}", T),
    ("nested brackets", "{{ ((((1)))) }}{{ [[[[]]]] }}{{ (1,) }}{{ () }}", {}),
    ("unknown statement", "a\n {% nope %}", {}),
    ("include", "{% include 'x' %}", {}),
    ("unclosed if", "{% if true %}a", {}),
    ("stray end", "a{% endif %}", {}),
    ("unclosed tag", "a {{ 1", {}),
    ("unclosed comment", "a {# 1", {}),
    ("unclosed string", "{{ 'a }}", {}),
    ("bad bracket", "{{ (1] }}", {}),
    ("empty print", "{{ }}", {}),
    ("unknown filter", "{{ 1 | nope }}", {}),
    ("unknown test", "{{ 1 is nope }}", {}),
    ("bad for", "{% for x of y %}{% endfor %}", {}),
    ("break outside", "{% break %}", {}),
    ("print tuple", "{{ 1, 'a' }}", {}),
    ("deep attributes", "{{ m.2.calls[0].args['c'].2 }}{{ m[-1].content }}{{ m[2]['calls'][0]['args']['A'] }}", T),
    ("args as json", "{% for c in m[2].calls %}{{ c.name }}({{ c.args | tojson }}){% for k, v in c.args.items() %}"
                     "<{{ k }}>{{ v | tojson if v is mapping or (v is sequence and v is not string) else v | string }}"
                     "</{{ k }}>{% endfor %}{% endfor %}", T),
]


def whitespace(itertools):
    """Every combination of signs around statements, comments, prints and raw blocks."""
    out = []
    for a, b, c, d in itertools.product(("", "-", "+"), repeat=4):
        if "+" in (b, d):
            if (a, c) != ("", ""):
                continue
        out.append("x \n  {%%%s if true %s%%} \n\n y \n {%%%s endif %s%%} \n z" % (a, b, c, d))
    for a, b in itertools.product(("", "-"), ("", "-")):
        for body in ("x", "y[0]"):
            out.append("a \n  {{%s %s %s}} \n\n b" % (a, body, b))
            out.append("a{{%s %s %s}}b\n" % (a, body, b))
    for a, b in itertools.product(("", "-", "+"), ("", "-", "+")):
        out.append(" \n  {#%s c %s#} \n\n b" % (a, b))
        out.append("\t{#%s c %s#}\n\t{%%%s set q = 1 %s%%}\n{{ q }}" % (a, b, a, b))
        out.append("a\n  {%%%s raw %%}\n r {{ \n  {%%%s endraw %s%%}\n b" % (a, a, b))
    for s in ("  {% if true %}a{% endif %}", "{% if true %}\n{% endif %}\n\n", "\u00a0 {%- if true %}x{% endif %}",
              "a  {% set q = 1 %}  b", "  {% set q = 1 %}  {% set r = 2 %}\n x", "  {{ x }}  {% if true %}\n  q{% endif %}",
              "{% for i in y %}\n  {{ i }}\n{% endfor %}\n", "{% for i in y -%}\n  {{ i }}\n{%- endfor %}",
              "\n{% for i in y %}{{ i }}{% endfor %}\n", "{%if true%}a{%endif%}", "{{x}}{{-x-}}{{ x}}",
              "{{- 1 }}", "{{+1}}", "{{ -1 }}", "{{--1}}", "\n\n  {%- set a = 1 -%}\n\n  b", "{%-if true-%} a {%-endif-%}",
              "\f\v {% if true %}a{% endif %}", " \u2003{% if true %}a{% endif %}", "a\n{#x#}\n\n{#y#}b",
              "{% if true %}  \n{% endif %}", "{% macro f() %}\n  a\n  {% endmacro %}\n{{ f() }}|"):
        out.append(s)
    return out


VARS = {
    "s": "Hello World", "e": "", "u": "héllo ÉCOLE ß ﬁ Σίσυφος ΣΑΣ", "ws": " \t\u00a0x y\n\u3000",
    "n": 7, "z": 0, "neg": -7, "f": 2.5, "big": 9007199254740993, "t": True, "fa": False, "no": None,
    "l": [3, 1, 2], "ls": ["b", "A", "c"], "le": [], "d": {"b": 1, "A": 2, "c": None}, "de": {},
    "nest": {"x": [{"y": "deep"}, 2]}, "q": "it's \"q\" \\ \n\t\u0001\u007fé\u200b👍", "html": "<a href='x'>&</a>",
    "items": [{"k": "v1", "n": 1}, {"k": "v2", "n": 2}, {"n": 3}],
}


def expressions():
    """A few hundred; those that the reference refuses must be refused by us."""
    atoms = ["s", "e", "n", "z", "f", "t", "no", "l", "d", "nope", "'ab'", "1.0", "(1, 2)"]
    out = []
    for a in atoms:
        out += ["%s" % a, "%s | string" % a, "%s | tojson" % a, "%s | length" % a, "not %s" % a,
                "%s is defined" % a, "%s is string" % a, "%s is mapping" % a, "%s is sequence" % a,
                "%s is iterable" % a, "%s is number" % a, "%s is none" % a, "%s is callable" % a,
                "%s ~ '|'" % a, "%s | default('D')" % a, "%s | default('D', true)" % a, "%s | list" % a,
                "%s | first" % a, "%s | last" % a, "%s | int" % a, "%s | float" % a, "%s | upper" % a,
                "%s | trim" % a, "[%s]" % a, "{'k': %s}" % a, "%s | join('-')" % a, "-%s" % a, "%s.foo" % a,
                "%s[0]" % a, "%s[-1]" % a, "%s[1:]" % a, "%s[::-1]" % a, "%s is boolean" % a]
    for op in ("+", "-", "*", "/", "//", "%", "**", "==", "!=", "<", ">=", "in", "not in", "and", "or", "~"):
        for a, b in (("n", "2"), ("n", "-2"), ("neg", "2"), ("f", "2"), ("n", "f"), ("neg", "f"), ("t", "1"), ("s", "'o'"),
                     ("'o'", "s"), ("l", "l"), ("l", "2"), ("2", "l"), ("n", "z"), ("f", "0.0"), ("no", "1"), ("d", "d"),
                     ("'b'", "d"), ("1", "1.0"), ("t", "t"), ("nope", "nope"), ("(1, 2)", "(1, 3)"), ("big", "1")):
            out.append("%s %s %s" % (a, op, b))
    out = [x for x in out if not x.startswith("1.0[")]  # folded before it can fail
    for line in LINES.strip().split("\n"):
        out += [x for x in line.split(" ;; ") if x.strip()]
    return out


# What the reference renders and we refuse: E_UNSUPPORTED, never another text.
REFUSED = {"neg ** f", "s is sameas s", "d.items", "l | map('string')", "0.5.real", "'%c' % 5",
           "s | wordcount", "s | batch(2)", "s | escape", "lipsum()", "s.encode()", "s.zfill(3)",
           "l.sort()"}

LINES = r"""
1 < 2 < 3 ;; 1 < 3 < 2 ;; 1 == 1.0 == true ;; 'a' < 'b' < 'c' ;; l == [3, 1, 2] ;; d == {'A': 2, 'b': 1, 'c': none}
2 + 3 * 4 ;; (2 + 3) * 4 ;; 2 ** 3 ** 2 ;; -2 ** 2 ;; -2 | abs ;; - 2 + 3 ;; 10 - 2 - 3 ;; 100 / 10 / 2 ;; 7 // 2 * 2 ;; 7 % 4 + 1 ;; 1 ~ 2 ~ 3 ;; 1 + 2 ~ 3 ;; 'a' ~ 1 + 2
not n == 7 ;; not (n == 8) ;; n == 7 and f == 2.5 or z ;; n and z or 'x' ;; z or no or e or 'last' ;; 1 if z else 2 ;; 1 if n ;; (1 if z) ;; 'a' if t else 'b' if fa else 'c'
n is odd ;; n is even ;; n is divisibleby 7 ;; n is divisibleby(3) ;; n is not odd ;; not n is odd ;; n is eq 7 ;; n is equalto(8) ;; n is ne 7 ;; n is gt 6 ;; n is ge(7) ;; n is lt 7 ;; n is le 7 ;; n is in l ;; 3 is in l ;; 3 is in(l)
s is lower ;; e is lower ;; 'abc' is lower ;; 'ABC' is upper ;; s is sameas s ;; t is sameas true ;; n is float ;; f is float ;; f is integer ;; t is integer ;; n is integer ;; s is not string ;; no is not none
s.upper() ;; s.lower() ;; s.title() ;; s.capitalize() ;; u.upper() ;; u.lower() ;; u.title() ;; u.capitalize() ;; u | upper ;; u | lower ;; u | title ;; u | capitalize ;; u | length ;; u[1] ;; u[-1] ;; u[1:4] ;; u[::-1] ;; u[::2] ;; u[10:2:-3]
'hello-wORLD (foo) [bar] x_y {z} <w>' | title ;; 'hello-wORLD (foo) x_y 3rd don\'t' | string ;; 'they\'re bill\'s'.title() ;; 'ǆ ŉ ß'.title() ;; 'İI'.lower() ;; 'ΑΣ'.lower() ;; 'Σ'.lower() ;; 'ΑΣΑ'.lower()
s.split() ;; s.split(' ') ;; s.split('o') ;; s.split('o', 1) ;; s.split('zz') ;; e.split() ;; e.split('x') ;; ws.split() ;; ws.split(none, 1) ;; 'a,,b,'.split(',') ;; '  a b  c '.split(none, 1) ;; s.split('') ;; 'a.b.c'.rsplit('.', 1) ;; 'a b'.rsplit() ;; s.split(sep='o', maxsplit=1)
ws.strip() ;; ws.lstrip() ;; ws.rstrip() ;; 'xxaxx'.strip('x') ;; 'xyaxy'.lstrip('yx') ;; 'éaé'.strip('é') ;; 'abc'.strip('') ;; 'abc'.strip('abc') ;; ws | trim ;; '--a--' | trim('-') ;; 'a'.strip(none)
s.startswith('Hell') ;; s.startswith('x') ;; s.startswith('') ;; s.endswith('ld') ;; s.endswith(('x', 'd')) ;; s.startswith(('H',)) ;; e.startswith('a') ;; s.startswith(1)
s.replace('o', '0') ;; s.replace('o', '0', 1) ;; s.replace('', '-') ;; s.replace('zz', 'y') ;; 'aaa'.replace('aa', 'b') ;; s | replace('l', 'L') ;; s | replace('l', 'L', 2) ;; n | replace('7', 'x') ;; 'é'.replace('', '.') ;; 'abc'.replace('b', '')
s.find('o') ;; s.find('zz') ;; s.find('o', 5) ;; s.find('o', 5, 6) ;; s.find('', 20) ;; s.find('') ;; u.find('É') ;; s.rfind('o') ;; s.index('W') ;; s.index('zz') ;; s.count('l') ;; s.count('') ;; 'aaaa'.count('aa') ;; s.count('l', 4) ;; s.find('d', -1) ;; s.rfind('l', 0, -3)
'-'.join(['a', 'b']) ;; '-'.join('abc') ;; '-'.join([]) ;; '-'.join([1]) ;; ', '.join(d) ;; l | join ;; l | join(', ') ;; items | join('+', attribute='n') ;; d | join('.') ;; [1, none, true, 2.0, 'x'] | join('/') ;; [] | join(',') ;; nope | join(',')
'{} {}'.format(1, 'x') ;; '{0}{1}{0}'.format('a', 'b') ;; '{k}'.format(k=3) ;; '{{}}'.format() ;; '{}'.format() ;; '{'.format() ;; '%s-%s' % ('a', 2) ;; '%d%%' % 5 ;; '%s' % l ;; '%s %s' % (1,) ;; '%s' % (1, 2) ;; '%.2f' % 3.14159 ;; '%5d ;; ' % 42 ;; '%-5d ;; ' % 42 ;; '%05.1f' % 2.25 ;; '%s' | format('x') ;; '%s,%s' | format(1, none) ;; '%d' % 'x' ;; 'a' % () ;; '%r' % 'x'
s.splitlines() ;; 'a\nb\r\nc\n'.splitlines() ;; 'a\nb'.splitlines(true) ;; ''.splitlines() ;; 'a=b=c'.partition('=') ;; 'a=b=c'.rpartition('=') ;; 'ab'.partition('=') ;; 'ab'.rpartition('=') ;; 'abc'.removeprefix('a') ;; 'abc'.removesuffix('c') ;; 'abc'.removeprefix('x') ;; ' \t'.isspace() ;; ''.isspace()
l[0] ;; l[-1] ;; l[3] ;; l[-4] ;; l['0'] ;; l[1.0] ;; l[true] ;; l[1:] ;; l[:1] ;; l[:-1] ;; l[-2:] ;; l[::-1] ;; l[::2] ;; l[5:] ;; l[2:1] ;; l[none:2] ;; l[:none] ;; l[::0] ;; l['a':] ;; s[0] ;; s[20] ;; s[2:5] ;; s[-3:] ;; s[:-3] ;; s[::-2] ;; s[100:] ;; (1, 2, 3)[1:] ;; range(5)[1] ;; range(5)[::-1] ;; l[-100:100] ;; s[-100:100:3]
d.b ;; d['b'] ;; d.nope ;; d['nope'] ;; d['nope'].x ;; d.nope.x ;; nest.x[0].y ;; nest['x'][0]['y'] ;; nest.x.0.y ;; nest.x[1].y ;; nest.x[5].y ;; no.x ;; n.x ;; s.x ;; d.get('b') ;; d.get('zz') ;; d.get('zz', 5) ;; d.get('c', 5) ;; d.items() | list ;; d.keys() | list ;; d.values() | list ;; d.items() ;; d.keys() ;; d.values() ;; d | items | list ;; d | list ;; d | dictsort ;; d | dictsort(true) ;; d | dictsort(reverse=true) ;; {'a': 2, 'b': 1} | dictsort(by='value') ;; {1: 2, true: 3, 'x': 4, none: 5, 1.5: 6} ;; {'a': 1}.a ;; {} ;; {'a': [1, {'b': none}]} ;; dict(a=1, b='x') ;; dict({'a': 1}, b=2) ;; dict([('a', 1)]) ;; {[1]: 2} ;; {(1, 2): 3}[(1, 2)] ;; d.items ;; d.items is callable
range(3) | list ;; range(2, 5) | list ;; range(5, 0, -2) | list ;; range(0) | list ;; range(3) ;; range(1, 10, 3) ;; range(3, 1) ;; range(10 ** 6) ;; range(1, 2, 0) ;; range('a') ;; range() ;; 3 in range(5) ;; 5 in range(5) ;; range(4) | length ;; range(4) | last ;; range(2) == range(0, 2)
l | sort ;; ls | sort ;; ls | sort(reverse=true) ;; ls | sort(case_sensitive=true) ;; items | sort(attribute='n', reverse=true) | map(attribute='n') | list ;; l | reverse | list ;; s | reverse ;; l | sum ;; items | sum(attribute='n') ;; l | min ;; l | max ;; ls | min ;; [] | max ;; [] | sum ;; [1, 1, 'a', 'A', 2] | unique | list ;; [1, 2.5] | sum ;; ['x'] | sum
l | map('string') | list ;; ls | map('upper') | list ;; ls | map('lower') | join ;; items | map(attribute='k') | list ;; items | map(attribute='k', default='-') | list ;; l | select('odd') | list ;; l | reject('odd') | list ;; items | selectattr('k') | list | length ;; items | selectattr('n', 'gt', 1) | map(attribute='n') | list ;; items | rejectattr('k', 'defined') | list ;; l | map('nope') | list ;; l | select('nope') | list ;; l | map | list ;; l | map('string') ;; l | first ;; le | first ;; le | last ;; s | first ;; d | first ;; s | list ;; l | list ;; no | list ;; '' | list
2.5 | round ;; 3.5 | round ;; 2.675 | round(2) ;; 42.55 | round(1, 'floor') ;; 42.55 | round(1, 'ceil') ;; 42 | round ;; -2.5 | round ;; 1234.567 | round(-2) ;; 'x' | round ;; 2.5 | round(method='nope') ;; 2.5 | int ;; '42' | int ;; '42.9' | int ;; 'x' | int ;; 'x' | int(5) ;; 'ff' | int(0, 16) ;; '0x1f' | int(0, 16) ;; ' 12 ' | int ;; '-3' | int ;; '1e3' | int ;; '1e3' | float ;; 'x' | float ;; 'x' | float(1.5) ;; 'nan' | float ;; 'inf' | float ;; true | int ;; none | int ;; none | float ;; [] | int ;; -5 | abs ;; 2.5 | abs ;; 'x' | abs ;; true | abs ;; '1_000' | string
0.1 + 0.2 ;; 1e16 ;; 1e15 ;; 123456789.0 * 1000000000 ;; 1e-4 ;; 1e-5 ;; 1.5e300 * 1e10 ;; 100.0 ;; -0.0 ;; 1 / 3 ;; 2 / 1 ;; 10 ** 15 * 1.0 ;; 1e22 ;; 5e-324 ;; 2 ** 0.5 ;; 2 ** -1 ;; 0 ** -1 ;; 7.0 // 2 ;; -7.5 % 2 ;; 7.5 // -2 ;; 1e308 * 10 ;; big ;; big + 0.0 ;; big == 9007199254740992.0 ;; 9223372036854775807 ;; 1_000 ;; 1.5e3 ;; 1. ;; 0.5.real ;; 3.0 == 3 ;; 2 ** 62 * 1 ;; true + true ;; true * 3 ;; 'ab' * 3 ;; 3 * 'ab' ;; 'ab' * -1 ;; [1] * 2 ;; [0] * 0 ;; (1,) * 2 ;; [1] + [2] ;; (1,) + (2,) ;; [1] + (2,) ;; 'a' + 1 ;; 1 + 'a' ;; none + 1 ;; d + d ;; true and 1 ;; not not 'x'
q ;; q | tojson ;; q | string | length ;; [q] ;; {'q': q} ;; html | tojson ;; html ;; html | safe ;; u | tojson(ensure_ascii=true) ;; q | tojson(true) ;; d | tojson ;; nest | tojson ;; nest | tojson(indent=2) ;; [] | tojson(indent=2) ;; {} | tojson(indent=2) ;; [[], {}, [1]] | tojson(indent=1) ;; d | tojson(sort_keys=true) ;; l | tojson(separators=(',', ':')) ;; d | tojson(separators=(',', ':'), indent=0) ;; nest | tojson(indent='\t') ;; nope | tojson ;; {1: 2, none: 3, true: 4, 1.5: 5} | tojson ;; (1, 2) | tojson ;; 1.0 | tojson ;; 1e100 | tojson ;; true | tojson ;; range(2) | tojson ;; namespace(a=1) | tojson ;; d.items() | tojson ;; '👍\u2028' | tojson ;; '👍\x7f\x00' | tojson(ensure_ascii=true) ;; ['a\'b', "a\"b", 'a\'"b'] ;; '\u200b\xad\u00a0\ue000' ;; ['\u200b\xad\u00a0\ue000\U0001F44D\x85']
'a\nb\n\nc' | indent ;; 'a\nb\n\nc' | indent(2) ;; 'a\nb' | indent(2, true) ;; 'a\n\nb' | indent(2, blank=true) ;; 'a\nb' | indent('> ') ;; '' | indent ;; 'a\n' | indent ;; n | indent ;; 'a\r\nb' | indent(width=1)
namespace(a=1).a ;; namespace(a=1).b ;; namespace(a=1)['a'] ;; namespace(a=1) ;; namespace(1) ;; nope is undefined ;; nope is not defined ;; nest.foo is defined ;; nope | d('x') ;; nope | default(no) ;; no | default('x') ;; fa | default('x', true) ;; e | default('x', boolean=true) ;; nope.x | default('x') ;; nope or 'x' ;; nope == nope ;; nope == none ;; nope < 1 ;; nope in l ;; l in nope ;; 1 in nope ;; 'x' in nope ;; 'a' in 5 ;; 1 in 'abc' ;; '' in '' ;; 'a' in ('a', 'b') ;; 2 in {1: 2, 2: 3} ;; none in [none] ;; [1] in [[1]] ;; l is sequence ;; range(2) is sequence ;; d.keys() is sequence ;; d.keys() is iterable ;; (l | map('string')) is iterable ;; namespace is callable ;; 'upper' is filter ;; 'nope' is filter ;; 'odd' is test
'%c' % 5 ;; s | wordcount ;; s | batch(2) ;; s | escape ;; lipsum() ;; s.encode() ;; s.zfill(3) ;; l.sort() ;; s(1) ;; l() ;; n() ;; d.b() ;; raise_exception('x') ;; s.upper(1) ;; s.split(1) ;; s.nope() ;; s | upper(1) ;; s | default(1, 2, 3) ;; s | trim(chars=' d') ;; s | replace('l') ;; s | int(default=4) ;; s | int(nope=4)
"""
