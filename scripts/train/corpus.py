#!/usr/bin/env python3
"""Builds the training text: Debian documentation packages -> plain Markdown-like documents.

Reads packages unpacked with `dpkg -x` (fetch.sh), turns HTML into text, splits documents into a
training and a held-out set, and writes one JSON-lines file each. Every package here is under a
permissive licence or in the public domain (configs/models/DATA.md); copyleft text is left out.
Chat-formatted text is made by chatdata.py, not here.
"""
import argparse, glob, gzip, hashlib, json, os, random, re, subprocess, sys
from html.parser import HTMLParser
from multiprocessing import Pool

from sums import mentions_heldout

# package, where its text is (globs under /usr), skip pattern, cap in characters
SOURCES = [
    ("python3.11-doc", ["share/doc/python3.11/html/**/*.html"], r"genindex|/_|py-modindex|search|contents|changelog", 12e6),
    ("libpython3.11-stdlib", ["lib/python3.11/**/*.py"], r"/(idlelib|lib2to3|pydoc_data|encodings)/|_pydecimal", 7e6),
    ("postgresql-doc-15", ["share/doc/postgresql-doc-15/html/*.html"], r"bookindex|/release-|infoschema|contrib-prog", 8e6),
    ("sqlite3-doc", ["share/doc/sqlite3/**/*.html"], r"releaselog|changes|doclist|keyword_index|/matrix|/src/|toc|sitemap", 5e6),
    ("cmake-doc", ["share/doc/cmake-data/html/**/*.html"], r"genindex|/_|search", 3e6),
    ("rust-doc", ["share/doc/rust-doc/html/%s/**/*.html" % d for d in
                  ("book", "reference", "nomicon", "rust-by-example", "edition-guide", "cargo", "rustc", "rustdoc")],
     r"print\.html|first-edition|second-edition|2018-edition|/toc|404", 6e6),
    ("rust-doc", ["share/doc/rust-doc/html/std/**/*.html"], r"print\.html|/src/|core_arch|/arch/|/simd/|sidebar|all\.html|prelude", 7e6),
    ("nodejs-doc", ["share/doc/nodejs/api/*.md.gz"], r"all\.|deprecations", 4e6),
    ("python-django-doc", ["share/doc/python-django-doc/html/**/*.html"], r"genindex|/_|search|releases/|modindex", 6e6),
    ("python-sqlalchemy-doc", ["share/doc/python-sqlalchemy-doc/html/**/*.html"], r"genindex|/_|search|changelog", 5e6),
    ("twisted-doc", ["share/doc/twisted-doc/html/**/*.html"], r"/api/|genindex|/_|search", 2e6),
    ("sphinx-doc", ["share/doc/sphinx-doc/html/**/*.html"], r"genindex|/_|search|changes", 2e6),
    ("apache2-doc", ["share/doc/apache2-doc/manual/en/**/*.html"], r"quickreference|directives|sitemap", 4e6),
    ("python-flask-doc", ["share/doc/python-flask-doc/html/**/*.html"], r"genindex|/_|search|changes", 1e6),
    ("python-werkzeug-doc", ["share/doc/python-werkzeug-doc/html/**/*.html"], r"genindex|/_|search|changes", 1e6),
    ("python-tornado-doc", ["share/doc/python-tornado-doc/html/**/*.html"], r"genindex|/_|search|releases", 1e6),
    ("python-aiohttp-doc", ["share/doc/python-aiohttp-doc/html/**/*.html"], r"genindex|/_|search|changes", 1e6),
    ("python-requests-doc", ["share/doc/python-requests-doc/html/**/*.html"], r"genindex|/_|search", 1e6),
    ("python-cryptography-doc", ["share/doc/python-cryptography-doc/html/**/*.html"], r"genindex|/_|search|changelog", 1e6),
    ("llvm-14-doc", ["share/doc/llvm-14-doc/html/**/*.html"], r"genindex|/_|search|AMDGPU/|doxygen", 5e6),
]
SKIP_TAGS = {"script", "style", "nav", "head", "footer", "button", "svg", "form", "select"}
SKIP_CLASS = re.compile(r"sphinxsidebar|related|navheader|navfooter|headerlink|footer|sidebar|toctree|contents|menu|"
                        r"out-of-band|srclink|anchor|notable-traits|sub-variant-hide|nosearch|fancytoc|linenos|id_link|mobile", re.I)
BLOCK = {"p", "div", "li", "dt", "dd", "h1", "h2", "h3", "h4", "h5", "h6", "pre", "table", "tr", "section", "ul", "ol",
         "dl", "blockquote", "article", "main", "body", "details", "summary"}
VOID = {"br", "img", "hr", "input", "meta", "link", "wbr", "col", "area", "base", "source"}


class ToText(HTMLParser):
    """Keeps headings (#), list items (-), code (indented by four) and paragraphs."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.out, self.buf, self.stack, self.skip, self.pre, self.prefix = [], [], [], 0, 0, ""

    def flush(self):
        text = "".join(self.buf)
        self.buf = []
        if self.pre:
            lines = [("    " + l.rstrip()) if l.strip() else "" for l in text.expandtabs(4).strip("\n").split("\n")]
            if any(l for l in lines):
                self.out.append("\n".join(lines))
            return
        text = " ".join(text.split())
        if text and text not in ("¶", "§", "-"):
            self.out.append(self.prefix + text)
        self.prefix = ""

    def handle_starttag(self, tag, attrs):
        if tag in VOID:
            if tag == "br" and not self.skip:
                self.buf.append("\n" if self.pre else " ")
            return
        a = dict(attrs)
        cls = (a.get("class") or "") + " " + (a.get("id") or "")
        drop = tag in SKIP_TAGS or a.get("role") == "navigation" or (tag != "body" and SKIP_CLASS.search(cls) is not None)
        self.stack.append((tag, drop))
        if drop:
            self.skip += 1
        if self.skip:
            return
        if tag in BLOCK:
            self.flush()
            if tag == "pre":
                self.pre += 1
            elif tag[0] == "h" and tag[1:].isdigit():
                self.prefix = "#" * min(int(tag[1:]), 4) + " "
            elif tag == "li":
                self.prefix = "- "
        elif tag in ("td", "th"):
            self.buf.append(" ")

    def handle_endtag(self, tag):
        if tag in VOID or not any(t == tag for t, _ in self.stack):
            return
        while self.stack:
            t, drop = self.stack.pop()
            if not self.skip and t in BLOCK:
                self.flush()
                if t == "pre":
                    self.pre -= 1
            if drop:
                self.skip -= 1
            if t == tag:
                break

    def handle_data(self, data):
        if not self.skip:
            self.buf.append(data)


def html_to_text(s):
    p = ToText()
    p.feed(s)
    p.flush()
    out = []
    for b in p.out:  # list items and table rows close together, the rest by an empty line
        out.append(b + ("\n" if b.startswith("- ") else "\n\n"))
    t = re.sub(r"(\n- [^\n]*\n)(?!- )", r"\1\n", "\n" + "".join(out)).strip() + "\n"
    return re.sub(r"\n{3,}", "\n\n", t)


def clean(t):
    t = t.replace("¶", "").replace("\u00a0", " ").replace("\u200b", "").replace("\r", "")
    t = t.translate({0x2018: "'", 0x2019: "'", 0x201C: '"', 0x201D: '"', 0x2013: "-", 0x2026: "..."})
    return t


def read_one(job):
    pkg, path = job
    raw = (gzip.open(path) if path.endswith(".gz") else open(path, "rb")).read()
    try:
        s = raw.decode("utf-8")
    except UnicodeDecodeError:
        s = raw.decode("latin-1")
    if path.endswith((".html", ".htm")):
        s = html_to_text(s)
    return pkg, path, clean(s)


def devil_and_jargon(root):
    docs = []
    for pkg in ("dict-jargon", "dict-devil"):
        for f in glob.glob(f"{root}/{pkg}/usr/share/dictd/*.dz"):
            s = clean(gzip.open(f).read().decode("utf-8", "replace"))
            entries = re.split(r"\n\n(?=[^\s])", s)
            for i in range(0, len(entries), 12):
                docs.append((pkg, f"{f}:{i}", "\n\n".join(entries[i:i + 12]) + "\n"))
    return docs


def bible(root):
    """The King James text is in the package's own packed form; its reader prints it."""
    exe = glob.glob(f"{root}/bible-kjv/usr/bin/bible")[0]
    data = glob.glob(f"{root}/bible-kjv-text/usr/lib/bible.data")[0]
    out = subprocess.run([exe, "-p", os.path.dirname(data), "-f", "gen1:1-rev22:21"], capture_output=True, text=True).stdout
    docs, cur, key = [], [], None
    for line in out.splitlines():
        m = re.match(r"(\S*?[A-Za-z]+)(\d+):(\d+)\s*(.*)", line)
        if not m:
            continue
        k = (m.group(1), m.group(2))
        if k != key and cur:
            docs.append(("bible-kjv-text", f"{key[0]}{key[1]}", "\n".join(cur) + "\n"))
            cur = []
        if k != key:
            cur.append(f"{m.group(1)} chapter {m.group(2)}\n")
            key = k
        cur.append(f"{m.group(3)} {m.group(4)}")
    if cur:
        docs.append(("bible-kjv-text", f"{key[0]}{key[1]}", "\n".join(cur) + "\n"))
    return docs


def wordnet(root):
    """Synsets as dictionary lines; also the source of the definitions in chatdata.py."""
    docs, lines = [], []
    names = {"noun": "noun", "verb": "verb", "adj": "adjective", "adv": "adverb"}
    for pos, name in names.items():
        for l in open(f"{root}/wordnet-base/usr/share/wordnet/data.{pos}", encoding="latin-1"):
            if l.startswith("  "):
                continue
            head, gloss = l.split(" | ", 1)
            f = head.split()
            n = int(f[3], 16)
            words = [re.sub(r"\(.*\)", "", f[4 + 2 * i]).replace("_", " ") for i in range(n)]
            lines.append(f"{', '.join(words)} ({name}): {gloss.strip()}")
    random.Random(1).shuffle(lines)
    for i in range(0, len(lines), 40):
        docs.append(("wordnet-base", f"wn:{i}", "\n".join(lines[i:i + 40]) + "\n"))
    return docs


def drop_repeats(docs):
    """Licence headers and blanket-implementation text repeat thousands of times: keep the first two."""
    seen, out = {}, []
    for pkg, path, t in docs:
        keep = []
        for para in t.split("\n\n"):
            if len(para) > 60:
                h = hashlib.blake2b(para.encode(), digest_size=8).digest()
                seen[h] = seen.get(h, 0) + 1
                if seen[h] > 2:
                    continue
            if mentions_heldout(para):
                continue
            keep.append(para)
        t = "\n\n".join(keep)
        if len(t) > 200:
            out.append((pkg, path, t))
    return out


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--root", required=True, help="folder with one unpacked package per subfolder")
    ap.add_argument("--out", required=True)
    a = ap.parse_args()
    docs = bible(a.root) + wordnet(a.root) + devil_and_jargon(a.root)
    with Pool(2) as pool:
        for pkg, globs, skip, cap in SOURCES:
            paths = sorted({p for g in globs for p in glob.glob(f"{a.root}/{pkg}/usr/{g}", recursive=True)})
            base = len(f"{a.root}/{pkg}/usr/")
            # the skip pattern sees the path below the documentation root only
            paths = [p for p in paths if os.path.isfile(p) and not re.search(skip, "/" + p[base:].split("/html/", 1)[-1])]
            random.Random(0).shuffle(paths)
            got = 0
            for d in pool.imap(read_one, [(pkg, p) for p in paths], chunksize=16):
                if got > cap:
                    break
                docs.append(d)
                got += len(d[2])
    docs = drop_repeats(docs)
    random.Random(7).shuffle(docs)
    stat = {}
    with open(a.out + "/train.jsonl", "w") as ft, open(a.out + "/held.jsonl", "w") as fh:
        for pkg, path, t in docs:
            h = int(hashlib.sha256(path.split("/")[-1].encode()).hexdigest(), 16) % 100 == 0
            s = stat.setdefault(pkg, [0, 0, 0])
            s[0] += 1
            s[2 if h else 1] += len(t.encode())
            (fh if h else ft).write(json.dumps({"src": pkg, "text": t}) + "\n")
    for k, v in sorted(stat.items()):
        print(f"{k:28s} docs {v[0]:6d} train {v[1] / 1e6:7.2f} MB held {v[2] / 1e6:6.3f} MB")
    print("total MB", sum(v[1] for v in stat.values()) / 1e6, file=sys.stderr)


if __name__ == "__main__":
    main()
