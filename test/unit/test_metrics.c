/* Goal: the metrics page is what Prometheus' text format asks for, with every series from the
 * start. Method: the page is parsed line by line with the format's rules; a known histogram is
 * filled and its lines compared. */
#include <check.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/buf.h"
#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/base/metrics.h"

/* Checks one sample line of family `name`; returns its value. */
static double sample(const char *line, const char *name, const char *type)
{
    size_t n = strlen(name);
    ck_assert_msg(!strncmp(line, name, n), "'%s' outside its family %s", line, name);
    const char *p = line + n;
    if (!strcmp(type, "histogram")) {
        size_t k = !strncmp(p, "_bucket", 7) ? 7 : !strncmp(p, "_count", 6) ? 6 : 4;
        ck_assert_msg(k != 4 || !strncmp(p, "_sum", 4), "%s", line);
        p += k;
    }
    ck_assert_msg(*p == '{' || *p == ' ', "%s", line);
    if (*p == '{') {
        for (p++; *p != '}';) {
            while (isalnum((unsigned char)*p) || *p == '_')
                p++;
            ck_assert_msg(p[0] == '=' && p[1] == '"', "%s", line);
            for (p += 2; *p != '"'; p++) {
                ck_assert_msg(*p, "%s", line);
                p += *p == '\\';
            }
            p++;
            ck_assert_msg(*p == ',' || *p == '}', "%s", line);
            p += *p == ',';
        }
        p++;
    }
    ck_assert_int_eq(*p, ' ');
    char *end;
    double v = strtod(p + 1, &end);
    ck_assert_msg(end != p + 1 && *end == 0, "%s", line);
    return v;
}

START_TEST(page)
{
    struct buf b = {0};
    metrics_print(&b, "model_name=\"m\"");
    ck_assert_int_eq(b.p[b.len - 1], '\n');
    char name[128] = "", type[32] = "", seen[16384] = "";
    int families = 0, samples = 0;
    char *save, *copy = mem_strdup(b.p);
    for (char *l = strtok_r(copy, "\n", &save); l; l = strtok_r(NULL, "\n", &save)) {
        if (!strncmp(l, "# HELP ", 7)) {
            ck_assert_int_eq(sscanf(l + 7, "%127s", name), 1);
            ck_assert_msg(strlen(l) > 8 + strlen(name), "no help text: %s", l);
            char key[140];
            snprintf(key, sizeof key, " %s ", name);
            ck_assert_msg(!strstr(seen, key), "%s twice", name);
            strncat(seen, key, sizeof seen - strlen(seen) - 1);
            families++;
        } else if (!strncmp(l, "# TYPE ", 7)) {
            char again[128];
            ck_assert_int_eq(sscanf(l + 7, "%127s %31s", again, type), 2);
            ck_assert_str_eq(again, name);
            size_t n = strlen(name);
            bool total = n > 6 && !strcmp(name + n - 6, "_total");
            ck_assert_msg(total == !strcmp(type, "counter"), "%s is a %s", name, type);
        } else {
            double v = sample(l, name, type);
            ck_assert_msg(v >= 0, "%s", l);
            samples++;
        }
    }
    ck_assert_int_eq(families, N_METRICS);
    ck_assert_int_gt(samples, 300);
    mem_free(copy);
    buf_done(&b);
}
END_TEST

static double value_of(const char *text, const char *series)
{
    const char *p = strstr(text, series);
    ck_assert_msg(p != NULL, "no %s", series);
    return strtod(p + strlen(series), NULL);
}

START_TEST(histogram)
{
    static const double seen[] = {0.0005, 0.001, 0.003, 0.07, 1000};
    for (size_t i = 0; i < ARRAY_LEN(seen); i++)
        metric_observe(M_TTFT, seen[i]);
    struct buf b = {0};
    metrics_print(&b, NULL);
    const char *p = buf_cstr(&b);
#define S "specd_time_to_first_token_seconds"
    ck_assert(value_of(p, S "_bucket{le=\"0.001\"} ") == 2); /* bounds are inclusive */
    ck_assert(value_of(p, S "_bucket{le=\"0.005\"} ") == 3);
    ck_assert(value_of(p, S "_bucket{le=\"0.08\"} ") == 4);
    ck_assert(value_of(p, S "_bucket{le=\"640\"} ") == 4);
    ck_assert(value_of(p, S "_bucket{le=\"+Inf\"} ") == 5);
    ck_assert(value_of(p, S "_count ") == 5);
    ck_assert_double_eq_tol(value_of(p, S "_sum "), 1000.0745, 1e-6);
    ck_assert(metric_read2(M_TTFT, 0, 0) == 5);
    metric_add2(M_DISCONNECTS, 2, 0, 3);
    buf_reset(&b);
    metrics_print(&b, "a=\"b\"");
    ck_assert(value_of(buf_cstr(&b), "specd_client_disconnects_total{a=\"b\",phase=\"decode\"} ") ==
              3);
    ck_assert(value_of(buf_cstr(&b), "specd_client_disconnects_total{a=\"b\",phase=\"queue\"} ") ==
              0);
    buf_done(&b);
}
END_TEST

START_TEST(escaping)
{
    struct buf b = {0};
    metrics_label(&b, "x", "a\"b\\c\nd");
    ck_assert_str_eq(buf_cstr(&b), "x=\"a\\\"b\\\\c\\nd\"");
    buf_done(&b);
}
END_TEST

Suite *suite_metrics(void)
{
    Suite *s = suite_create("metrics");
    TCase *t = tcase_create("metrics");
    tcase_add_test(t, page);
    tcase_add_test(t, histogram);
    tcase_add_test(t, escaping);
    suite_add_tcase(s, t);
    return s;
}
