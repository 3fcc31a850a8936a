/* JSON reading on top of jansson; see the header for the rules. */
#include "engine/base/js.h"

#include <math.h>
#include <string.h>

#include "engine/base/buf.h"
#include "engine/base/file.h"

int js_parse(json_t **out, const char *text, size_t len, const char *what, struct err *e)
{
    if (len >= 3 && !memcmp(text, "\xef\xbb\xbf", 3)) {
        text += 3;
        len -= 3;
    }
    json_error_t je;
    json_t *v = json_loadb(text, len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &je);
    if (!v)
        return FAIL(e, E_FORMAT, "%s is not valid JSON: %s (line %d, column %d)", what, je.text,
                    je.line, je.column);
    *out = v;
    return OK;
}

int js_load(json_t **out, const char *path, struct err *e)
{
    struct file_map m = {0};
    TRY(file_map_open(&m, path, e));
    int ret = js_parse(out, m.p, m.len, path, e);
    file_map_close(&m);
    return ret;
}

json_t *js_get(const json_t *o, const char *key)
{
    json_t *v = json_object_get(o, key);
    return v && json_is_null(v) ? NULL : v;
}

const char *js_type_name(const json_t *v)
{
    if (!v)
        return "nothing";
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    case JSON_NULL:
        return "null";
    }
    return "unknown";
}

static int wrong_type(const char *key, const char *want, const json_t *v, struct err *e)
{
    return FAIL(e, E_INVAL, "'%s' must be %s, not %s", key, want, js_type_name(v));
}

int js_get_str(const json_t *o, const char *key, const char **out, struct err *e)
{
    json_t *v = js_get(o, key);
    if (!v)
        return 0;
    if (!json_is_string(v))
        return wrong_type(key, "a string", v, e);
    *out = json_string_value(v);
    return 1;
}

int js_get_bool(const json_t *o, const char *key, bool *out, struct err *e)
{
    json_t *v = js_get(o, key);
    if (!v)
        return 0;
    if (!json_is_boolean(v))
        return wrong_type(key, "a boolean", v, e);
    *out = json_is_true(v);
    return 1;
}

bool js_is_int(const json_t *v, int64_t *out)
{
    if (json_is_integer(v)) {
        *out = json_integer_value(v);
        return true;
    }
    if (json_is_real(v)) {
        double d = json_real_value(v);
        if (d == floor(d) && fabs(d) <= 0x1p53) {
            *out = (int64_t)d;
            return true;
        }
    }
    return false;
}

int js_get_i64(const json_t *o, const char *key, int64_t lo, int64_t hi, int64_t *out,
               struct err *e)
{
    json_t *v = js_get(o, key);
    if (!v)
        return 0;
    int64_t n;
    if (!js_is_int(v, &n))
        return wrong_type(key, "an integer", v, e);
    if (n < lo || n > hi)
        return FAIL(e, E_INVAL, "'%s' must be between %lld and %lld, not %lld", key, (long long)lo,
                    (long long)hi, (long long)n);
    *out = n;
    return 1;
}

int js_get_num(const json_t *o, const char *key, double *out, struct err *e)
{
    json_t *v = js_get(o, key);
    if (!v)
        return 0;
    if (!json_is_number(v))
        return wrong_type(key, "a number", v, e);
    double d = json_number_value(v);
    if (!isfinite(d))
        return FAIL(e, E_INVAL, "'%s' must be finite", key);
    *out = d;
    return 1;
}

int js_get_obj(const json_t *o, const char *key, json_t **out, struct err *e)
{
    json_t *v = js_get(o, key);
    if (!v)
        return 0;
    if (!json_is_object(v))
        return wrong_type(key, "an object", v, e);
    *out = v;
    return 1;
}

int js_get_arr(const json_t *o, const char *key, json_t **out, struct err *e)
{
    json_t *v = js_get(o, key);
    if (!v)
        return 0;
    if (!json_is_array(v))
        return wrong_type(key, "an array", v, e);
    *out = v;
    return 1;
}

void js_quote(struct buf *b, const char *s, size_t n)
{
    static const char hex[] = "0123456789abcdef";
    buf_char(b, '"');
    size_t from = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        buf_push(b, s + from, i - from);
        from = i + 1;
        char esc[6] = {'\\', (char)c, 0, 0, 0, 0};
        size_t len = 2;
        if (c == '\n') {
            esc[1] = 'n';
        } else if (c == '\r') {
            esc[1] = 'r';
        } else if (c == '\t') {
            esc[1] = 't';
        } else if (c < 0x20) {
            memcpy(esc + 1, "u00", 3);
            esc[4] = hex[c >> 4];
            esc[5] = hex[c & 15];
            len = 6;
        }
        buf_push(b, esc, len);
    }
    buf_push(b, s + from, n - from);
    buf_char(b, '"');
}
