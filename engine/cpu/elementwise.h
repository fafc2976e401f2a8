// Element-wise and row-wise operations. Every operand has its own strides over the common row
// space; absent ones have address 0.

typedef struct {
    int64_t i[4];
} row_at;

static row_at first_row(const pb_rows* r) {
    row_at at;
    int64_t n = r->r0;
    for (int k = 3; k > 0; k--)
        at.i[k] = n % r->d[k], n /= r->d[k];
    at.i[0] = n;
    return at;
}

static void next_row(const pb_rows* r, row_at* at) {
    for (int k = 3; k >= 0; k--) {
        if (++at->i[k] < r->d[k] || k == 0) return;
        at->i[k] = 0;
    }
}

static int64_t row_offset(const pb_view* v, const row_at* at) {
    return at->i[0] * v->s[0] + at->i[1] * v->s[1] + at->i[2] * v->s[2] + at->i[3] * v->s[3];
}

static float* row_of(const pb_view* v, const row_at* at) {
    return v->p ? (float*)v->p + row_offset(v, at) : 0;
}

// EACH runs BODY for every vector of a row; LD and ST load and store n lanes (the last vector may
// be partial), i is the element.
#define LD(p) (n == VW ? vload((p) + i) : vload_n((p) + i, n))
#define ST(p, v) (n == VW ? vstore((p) + i, v) : vstore_n((p) + i, v, n))
#define EACH(len, BODY)                                                                            \
    do {                                                                                           \
        int64_t i = 0;                                                                             \
        for (; i + VW <= (len); i += VW) {                                                         \
            const int64_t n = VW;                                                                  \
            (void)n;                                                                               \
            BODY;                                                                                  \
        }                                                                                          \
        if (i < (len)) {                                                                           \
            const int64_t n = (len) - i;                                                           \
            (void)n;                                                                               \
            BODY;                                                                                  \
        }                                                                                          \
    } while (0)

static void act_row(float* y, const float* a, const float* b, const float* c, const float* d,
                    int64_t len, int act) {
#define ACT_ROW(A)                                                                                 \
    case A:                                                                                        \
        if (c) {                                                                                   \
            EACH(len, ST(y, vact(A, vfma(LD(a) - LD(d), LD(b), LD(c)))));                          \
        } else if (b) {                                                                            \
            EACH(len, ST(y, vact(A, LD(a)) * LD(b)));                                              \
        } else {                                                                                   \
            EACH(len, ST(y, vact(A, LD(a))));                                                      \
        }                                                                                          \
        break
    switch (act) {
        ACT_ROW(PB_ACT_NONE);
        ACT_ROW(PB_GELU_TANH);
        ACT_ROW(PB_GELU_ERF);
        ACT_ROW(PB_SILU);
        ACT_ROW(PB_QUICK_GELU);
        ACT_ROW(PB_RELU);
    }
#undef ACT_ROW
}

static void gated_row(float* y, const float* a, const float* b, const float* gate,
                      const float* bias, int64_t len) {
    if (gate && bias) {
        EACH(len, ST(y, vfma(LD(gate), LD(b) + LD(bias), LD(a))));
    } else if (gate) {
        EACH(len, ST(y, vfma(LD(gate), LD(b), LD(a))));
    } else if (bias) {
        EACH(len, ST(y, LD(a) + (LD(b) + LD(bias))));
    } else {
        EACH(len, ST(y, LD(a) + LD(b)));
    }
}

// sums are the sum and the sum of squares of x - at over a row.
typedef struct {
    float one, two;
} sums;

// row_sums adds in four independent chains of vectors.
static sums row_sums(const float* x, int64_t len, float at) {
    vf s[4] = {vzero(), vzero(), vzero(), vzero()}, q[4] = {vzero(), vzero(), vzero(), vzero()};
    const vf m = vset(at);
    int64_t i = 0;
    for (; i + 4 * VW <= len; i += 4 * VW) {
        _Pragma("GCC unroll 4") for (int k = 0; k < 4; k++) {
            vf v = vload(x + i + k * VW) - m;
            s[k] = s[k] + v;
            q[k] = vfma(v, v, q[k]);
        }
    }
    for (; i + VW <= len; i += VW) {
        vf v = vload(x + i) - m;
        s[0] = s[0] + v;
        q[0] = vfma(v, v, q[0]);
    }
    sums r = {vsum((s[0] + s[1]) + (s[2] + s[3])), vsum((q[0] + q[1]) + (q[2] + q[3]))};
    for (; i < len; i++) {
        r.one += x[i] - at;
        r.two += (x[i] - at) * (x[i] - at);
    }
    return r;
}

// norm_row: y = (x - mean) * r * w + b (LayerNorm), * (1 + w) + b (AdaLN), or without mean
// (RMSNorm). The mean is kept as the rounded hi and the small rest lo, so that rows far from 0 lose
// nothing.
static void norm_row(float* y, const float* x, const float* w, const float* b, int64_t len,
                     float eps, int op) {
    float hi = 0, lo = 0;
    sums s = row_sums(x, len, 0);
    if (op != PB_RMS_NORM) {
        hi = s.one / (float)len;
        s = row_sums(x, len, hi);
        lo = s.one / (float)len;
    }
    const float variance = s.two / (float)len - lo * lo;
    const float r = 1 / sqrtf((variance < 0 ? 0 : variance) + eps);
    const vf m = vset(hi), d = vset(lo), f = vset(r), one = vset(op == PB_ADA_LN ? 1 : 0);
#define NORMED (((LD(x) - m) - d) * f)
    if (w && b) {
        EACH(len, ST(y, vfma(NORMED, LD(w) + one, LD(b))));
    } else if (w) {
        EACH(len, ST(y, NORMED * (LD(w) + one)));
    } else if (b) {
        EACH(len, ST(y, NORMED + LD(b)));
    } else {
        EACH(len, ST(y, NORMED));
    }
#undef NORMED
}

// merge_row folds o2 with log-sum-exp l2 into o with l1 (arXiv:2310.01889, sec. 2).
static void merge_row(float* o, float* l1, const float* o2, const float* l2, int64_t len) {
    const float top = fmaxf(*l1, *l2);
    if (top == -INFINITY) return;
    const float w1 = expf(*l1 - top), w2 = expf(*l2 - top);
    const vf f1 = vset(w1 / (w1 + w2)), f2 = vset(w2 / (w1 + w2));
    EACH(len, ST(o, vfma(LD(o), f1, LD(o2) * f2)));
    *l1 = top + logf(w1 + w2);
}

static void ew(const pb_ew* e) {
    const int64_t len = e->rows.n;
    row_at at = first_row(&e->rows);
    for (int64_t r = e->rows.r0; r < e->rows.r1; r++, next_row(&e->rows, &at)) {
        float *y = row_of(&e->y, &at), *a = row_of(&e->a, &at), *b = row_of(&e->b, &at);
        float *c = row_of(&e->c, &at), *d = row_of(&e->d, &at);
        switch (e->op) {
        case PB_ADD:
            gated_row(y, a, b, 0, 0, len);
            break; // y = a + b
        case PB_GATED_ADD:
            gated_row(y, a, b, c, d, len);
            break;       // y = a + c * (b + d)
        case PB_ACT:     // y = act(a)
        case PB_ACT_MUL: // y = act(a) * b
        case PB_AFFINE_ACT:
            act_row(y, a, b, c, d, len, e->act);
            break; // y = act((a - d) * b + c)
        case PB_FILL:
            EACH(len, ST(y, vset(e->value)));
            break;
        case PB_MERGE:
            merge_row(y, a, b, c, len);
            break; // y = o, a = lse, b = o2, c = lse2
        default:
            norm_row(y, a, b, c, len, e->value, e->op); // norm of a, weight b, shift c
        }
    }
}

static void mean(const pb_mean* a) {
    const float* x = (const float*)a->x;
    for (int64_t i = a->c0; i < a->c1; i += VW) {
        const int64_t n = imin(VW, a->c1 - i);
        vf total = vzero();
        for (int64_t l0 = 0; l0 < a->l; l0 += 64) { // sums of sums: the error stays small
            vf part = vzero();
            for (int64_t l = l0; l < imin(a->l, l0 + 64); l++)
                part = part + LD(x + l * a->ls);
            total = total + part;
        }
        ST((float*)a->y, total / (float)a->l);
    }
}

// stats sums in f64: the variance is a difference of large numbers later.
static void stats(const pb_stats* a) {
    typedef double vd __attribute__((vector_size(8 * (VW / 2))));
    typedef float vhalf __attribute__((vector_size(4 * (VW / 2))));
    double* out = (double*)a->out;
    enum { H = VW / 2 };
    for (int64_t c = 0; c < 2 * a->c; c++)
        out[c] = 0;
    for (int64_t r = a->r0; r < a->r1;) {
        // Runs of pixels of one picture row; all channels of a run stay in the first cache.
        const int64_t x0 = r % a->in_x, n = imin(imin(a->in_x - x0, a->r1 - r), 16);
        const float* p = (const float*)a->x + r / a->in_x * a->ys + x0 * a->xs;
        int64_t c = 0;
        for (; c + H <= a->c; c += H) {
            vd s = {0}, q = {0};
            for (int64_t i = 0; i < n; i++) {
                vhalf v;
                memcpy(&v, p + i * a->xs + c, sizeof v);
                vd w = __builtin_convertvector(v, vd);
                s += w;
                q += w * w;
            }
            for (int k = 0; k < H; k++)
                out[c + k] += s[k], out[a->c + c + k] += q[k];
        }
        for (; c < a->c; c++) {
            for (int64_t i = 0; i < n; i++) {
                const double w = p[i * a->xs + c];
                out[c] += w, out[a->c + c] += w * w;
            }
        }
        r += n;
    }
}
