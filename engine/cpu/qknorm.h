// Query and key heads: normalise, rotate, store elsewhere (or in place). The tables of one row
// serve all its heads, so they are spread to one factor a lane first: y = x * cos + swapped(x) *
// (-sin, sin).

enum { MAX_HEAD = 1024 };

static void spread_tables(float* cs, float* sn, const float* cos, const float* sin, int64_t d) {
    for (int64_t i = 0; i < d / 2; i++) {
        cs[2 * i] = cs[2 * i + 1] = cos[i];
        sn[2 * i] = -sin[i];
        sn[2 * i + 1] = sin[i];
    }
}

static void rotate_head(float* y, const float* x, const float* cs, const float* sn, int64_t d) {
    EACH(d, {
        vf v = LD(x);
        ST(y, vfma(SWAP_PAIRS(v), LD(sn), v * LD(cs)));
    });
}

static void qk_rows(const pb_qk* a, int which, const row_at* at, const float* cs, const float* sn) {
    const float *w = (const float*)a->w[which], *b = (const float*)a->b[which];
    float* y = row_of(&a->dst[which], at);
    const float* x = row_of(&a->src[which], at);
    for (int64_t h = 0; h < a->rows.n; h++, y += a->dst_h[which], x += a->src_h[which]) {
        const float* from = x;
        if (a->norm) {
            norm_row(y, x, w, b, a->d, a->eps, a->norm == 1 ? PB_RMS_NORM : PB_LAYER_NORM);
            from = y;
        }
        if (cs) {
            rotate_head(y, from, cs, sn, a->d);
        } else if (from != y) {
            memcpy(y, from, (size_t)a->d * 4);
        }
    }
}

static void qk(const pb_qk* a) {
    float cs[MAX_HEAD], sn[MAX_HEAD];
    row_at at = first_row(&a->rows);
    for (int64_t r = a->rows.r0; r < a->rows.r1; r++, next_row(&a->rows, &at)) {
        const int64_t l = at.i[3];
        if (a->cos) {
            spread_tables(cs, sn, (const float*)a->cos + l * a->cos_s,
                          (const float*)a->sin + l * a->sin_s, a->d);
        }
        for (int which = 0; which < 2; which++) {
            if (a->src[which].p) qk_rows(a, which, &at, a->cos ? cs : 0, sn);
        }
        if (!a->src[2].p) continue;
        float* y = row_of(&a->dst[2], &at);
        const float* x = row_of(&a->src[2], &at);
        for (int64_t h = 0; h < a->rows.n && x != y; h++, y += a->dst_h[2], x += a->src_h[2]) {
            memcpy(y, x, (size_t)a->d * 4);
        }
    }
}
