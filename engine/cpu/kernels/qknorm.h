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

// rotate_head: x is of type TX, y of type T.
VI void rotate_head(const int T, const int TX, void* y, const void* x, const float* cs,
                    const float* sn, int64_t d) {
    EACH(d, {
        vf v = load_act(TX, x, i, n);
        STA(y, vfma(SWAP_PAIRS(v), LD(sn), v * LD(cs)));
    });
}

// qk_rows: heads that are normalised and rotated wait in f32, so that they are rounded once.
VI void qk_rows(const int T, const pb_qk* a, int which, const row_at* at, const float* cs,
                const float* sn) {
    const float *w = (const float*)a->w[which], *b = (const float*)a->b[which];
    const int64_t es = act_size(T);
    const int norm = a->norm == 1 ? PB_RMS_NORM : PB_LAYER_NORM;
    char* y = (char*)row_of(&a->dst[which], at, es);
    const char* x = (const char*)row_of(&a->src[which], at, es);
    float head[MAX_HEAD];
    for (int64_t h = 0; h < a->rows.n; h++, y += a->dst_h[which] * es, x += a->src_h[which] * es) {
        if (a->norm && cs) {
            norm_row(T, PB_F32, head, x, w, b, a->d, a->eps, norm);
            rotate_head(T, PB_F32, y, head, cs, sn, a->d);
        } else if (a->norm) {
            norm_row(T, T, y, x, w, b, a->d, a->eps, norm);
        } else if (cs) {
            rotate_head(T, T, y, x, cs, sn, a->d);
        } else if (x != y) {
            memcpy(y, x, (size_t)(a->d * es));
        }
    }
}

void KERNEL(qk)(const pb_qk* a) {
    float cs[MAX_HEAD], sn[MAX_HEAD];
    const int64_t es = act_size((int)a->dtype);
    row_at at = first_row(&a->rows);
    for (int64_t r = a->rows.r0; r < a->rows.r1; r++, next_row(&a->rows, &at)) {
        const int64_t l = at.i[3];
        if (a->cos) {
            spread_tables(cs, sn, (const float*)a->cos + l * a->cos_s,
                          (const float*)a->sin + l * a->sin_s, a->d);
        }
        for (int which = 0; which < 2; which++) {
            if (!a->src[which].p) continue;
            if (a->dtype == PB_F32) {
                qk_rows(PB_F32, a, which, &at, a->cos ? cs : 0, sn);
            } else {
                qk_rows(PB_BF16, a, which, &at, a->cos ? cs : 0, sn);
            }
        }
        if (!a->src[2].p) continue;
        char* y = (char*)row_of(&a->dst[2], &at, es);
        const char* x = (const char*)row_of(&a->src[2], &at, es);
        const int64_t dy = a->dst_h[2] * es, dx = a->src_h[2] * es;
        for (int64_t h = 0; h < a->rows.n && x != y; h++, y += dy, x += dx)
            memcpy(y, x, (size_t)(a->d * es));
    }
}
