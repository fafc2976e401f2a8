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

// row_of returns the row of a view whose elements have es bytes.
static void* row_of(const pb_view* v, const row_at* at, int64_t es) {
    return v->p ? (char*)v->p + row_offset(v, at) * es : 0;
}

// EACH runs BODY for every vector of a row; n is its lanes (the last vector may be partial), i its
// element. LD loads f32; LDA and STA load and store activations of type T, a constant.
#define LD(p) load_act(PB_F32, p, i, n)
#define LDA(p) load_act(T, p, i, n)
#define STA(p, v) store_act(T, p, i, v, n)
#define EACH(len, BODY)                                                                            \
    do {                                                                                           \
        int64_t i = 0;                                                                             \
        for (; i + VW <= (len); i += VW) {                                                         \
            const int64_t n = VW;                                                                  \
            (void)n;                                                                               \
            BODY;                                                                                  \
        }                                                                                          \
        if (i < (len)) {                                                                           \
            const int64_t n = (len)-i;                                                             \
            (void)n;                                                                               \
            BODY;                                                                                  \
        }                                                                                          \
    } while (0)

// act_row: y = act((a - d) * f + c), act(a) * b, or act(a).
VI void act_row(const int T, void* y, const void* a, const void* b, const float* f, const float* c,
                const float* d, int64_t len, int act) {
#define ACT_ROW(A)                                                                                 \
    case A:                                                                                        \
        if (c) {                                                                                   \
            EACH(len, STA(y, vact(A, vfma(LDA(a) - LD(d), LD(f), LD(c)))));                        \
        } else if (b) {                                                                            \
            EACH(len, STA(y, vact(A, LDA(a)) * LDA(b)));                                           \
        } else {                                                                                   \
            EACH(len, STA(y, vact(A, LDA(a))));                                                    \
        }                                                                                          \
        break
    switch (act) {
        ACT_ROW(PB_ACT_NONE);
        ACT_ROW(PB_GELU_TANH);
        ACT_ROW(PB_GELU_ERF);
        ACT_ROW(PB_SILU);
        ACT_ROW(PB_QUICK_GELU);
        ACT_ROW(PB_RELU);
        ACT_ROW(PB_SIGMOID);
    }
#undef ACT_ROW
}

VI void gated_row(const int T, void* y, const void* a, const void* b, const float* gate,
                  const float* bias, int64_t len) {
    if (gate && bias) {
        EACH(len, STA(y, vfma(LD(gate), LDA(b) + LD(bias), LDA(a))));
    } else if (gate) {
        EACH(len, STA(y, vfma(LD(gate), LDA(b), LDA(a))));
    } else if (bias) {
        EACH(len, STA(y, LDA(a) + (LDA(b) + LD(bias))));
    } else {
        EACH(len, STA(y, LDA(a) + LDA(b)));
    }
}

// sums are the sum and the sum of squares of x - at over a row.
typedef struct {
    float one, two;
} sums;

// row_sums adds in four independent chains of vectors.
VI sums row_sums(const int T, const void* x, int64_t len, float at) {
    vf s[4] = {vzero(), vzero(), vzero(), vzero()}, q[4] = {vzero(), vzero(), vzero(), vzero()};
    const vf m = vset(at);
    int64_t i = 0;
    for (; i + 4 * VW <= len; i += 4 * VW) {
        _Pragma("GCC unroll 4") for (int k = 0; k < 4; k++) {
            vf v = load_act(T, x, i + k * VW, VW) - m;
            s[k] = s[k] + v;
            q[k] = vfma(v, v, q[k]);
        }
    }
    for (; i + VW <= len; i += VW) {
        vf v = load_act(T, x, i, VW) - m;
        s[0] = s[0] + v;
        q[0] = vfma(v, v, q[0]);
    }
    sums r = {vsum((s[0] + s[1]) + (s[2] + s[3])), vsum((q[0] + q[1]) + (q[2] + q[3]))};
    for (; i < len; i++) {
        const float v = act_at(T, x, i) - at;
        r.one += v;
        r.two += v * v;
    }
    return r;
}

// norm_row: y = (x - mean) * r * w + b (LayerNorm), * (1 + w) + b (AdaLN), or without mean
// (RMSNorm). The mean is kept as the rounded hi and the small rest lo, so that rows far from 0 lose
// nothing. x is of type T, y of type TY.
VI void norm_row(const int T, const int TY, void* y, const void* x, const float* w, const float* b,
                 int64_t len, float eps, int op) {
    float hi = 0, lo = 0;
    sums s = row_sums(T, x, len, 0);
    if (op != PB_RMS_NORM) {
        hi = s.one / (float)len;
        s = row_sums(T, x, len, hi);
        lo = s.one / (float)len;
    }
    const float variance = s.two / (float)len - lo * lo;
    const float r = 1 / sqrtf((variance < 0 ? 0 : variance) + eps);
    const vf m = vset(hi), d = vset(lo), f = vset(r), one = vset(op == PB_ADA_LN ? 1 : 0);
#define STN(v) store_act(TY, y, i, v, n)
#define NORMED (((LDA(x) - m) - d) * f)
    if (w && b) {
        EACH(len, STN(vfma(NORMED, LD(w) + one, LD(b))));
    } else if (w) {
        EACH(len, STN(NORMED * (LD(w) + one)));
    } else if (b) {
        EACH(len, STN(NORMED + LD(b)));
    } else {
        EACH(len, STN(NORMED));
    }
#undef STN
#undef NORMED
}

// merge_row folds o2 with log-sum-exp l2 into o with l1 (arXiv:2310.01889, sec. 2).
VI void merge_row(const int T, void* o, float* l1, const void* o2, const float* l2, int64_t len) {
    const float top = fmaxf(*l1, *l2);
    if (top == -INFINITY) return;
    const float w1 = expf(*l1 - top), w2 = expf(*l2 - top);
    const vf f1 = vset(w1 / (w1 + w2)), f2 = vset(w2 / (w1 + w2));
    EACH(len, STA(o, vfma(LDA(o), f1, LDA(o2) * f2)));
    *l1 = top + logf(w1 + w2);
}

// ew_rows: y, and a and b where they are activations, are of type T; all else is f32.
VI void ew_rows(const int T, const pb_ew* e) {
    const int64_t len = e->rows.n, es = act_size(T);
    const int merge = e->op == PB_MERGE;
    const int vector_b = e->op == PB_AFFINE_ACT || (e->op >= PB_LAYER_NORM && !merge);
    row_at at = first_row(&e->rows);
    for (int64_t r = e->rows.r0; r < e->rows.r1; r++, next_row(&e->rows, &at)) {
        void *y = row_of(&e->y, &at, es), *a = row_of(&e->a, &at, merge ? 4 : es);
        void* b = row_of(&e->b, &at, vector_b ? 4 : es);
        float *c = (float*)row_of(&e->c, &at, 4), *d = (float*)row_of(&e->d, &at, 4);
        switch (e->op) {
        case PB_ADD:
            gated_row(T, y, a, b, 0, 0, len);
            break; // y = a + b
        case PB_GATED_ADD:
            gated_row(T, y, a, b, c, d, len);
            break;       // y = a + c * (b + d)
        case PB_ACT:     // y = act(a)
        case PB_ACT_MUL: // y = act(a) * b
            act_row(T, y, a, b, 0, 0, 0, len, e->act);
            break;
        case PB_AFFINE_ACT:
            act_row(T, y, a, 0, (const float*)b, c, d, len, e->act);
            break; // y = act((a - d) * b + c)
        case PB_FILL:
            EACH(len, STA(y, vset(e->value)));
            break;
        case PB_MERGE:
            merge_row(T, y, (float*)a, b, c, len);
            break; // y = o, a = lse, b = o2, c = lse2
        default:
            norm_row(T, T, y, a, (const float*)b, c, len, e->value, e->op);
            break; // norm of a, weight b, shift c
        }
    }
}

static void ew_f32(const pb_ew* e) { ew_rows(PB_F32, e); }
static void ew_bf16(const pb_ew* e) { ew_rows(PB_BF16, e); }
void KERNEL(ew)(const pb_ew* e) { (e->dtype == PB_F32 ? ew_f32 : ew_bf16)(e); }

VI void mean_of(const int T, const pb_mean* a) {
    const char* x = (const char*)a->x;
    for (int64_t i = a->c0; i < a->c1; i += VW) {
        const int64_t n = imin(VW, a->c1 - i);
        vf total = vzero();
        for (int64_t l0 = 0; l0 < a->l; l0 += 64) { // sums of sums: the error stays small
            vf part = vzero();
            for (int64_t l = l0; l < imin(a->l, l0 + 64); l++)
                part = part + LDA(x + l * a->ls * act_size(T));
            total = total + part;
        }
        STA((void*)a->y, total / (float)a->l);
    }
}

void KERNEL(mean)(const pb_mean* a) {
    if (a->dtype == PB_F32) {
        mean_of(PB_F32, a);
    } else {
        mean_of(PB_BF16, a);
    }
}

// load_half loads VW / 2 activations.
enum { HALF = VW / 2 };
typedef float vhalf __attribute__((vector_size(4 * HALF)));
VI vhalf load_half(const int T, const void* p, int64_t i) {
    typedef uint16_t half16 __attribute__((vector_size(2 * HALF)));
    typedef uint32_t half32 __attribute__((vector_size(4 * HALF)));
    vhalf v;
    half16 h;
    if (T == PB_F32) {
        memcpy(&v, (const float*)p + i, sizeof v);
        return v;
    }
    memcpy(&h, (const uint16_t*)p + i, sizeof h);
    return (vhalf)(__builtin_convertvector(h, half32) << 16);
}

// stats_of sums in f64: the variance is a difference of large numbers later.
VI void stats_of(const int T, const pb_stats* a) {
    typedef double vd __attribute__((vector_size(8 * HALF)));
    double* out = (double*)a->out;
    const int64_t es = act_size(T);
    for (int64_t c = 0; c < 2 * a->c; c++)
        out[c] = 0;
    for (int64_t r = a->r0; r < a->r1;) {
        // Runs of pixels of one picture row; all channels of a run stay in the first cache.
        const int64_t x0 = r % a->in_x, n = imin(imin(a->in_x - x0, a->r1 - r), 16);
        const char* p = (const char*)a->x + (r / a->in_x * a->ys + x0 * a->xs) * es;
        int64_t c = 0;
        for (; c + HALF <= a->c; c += HALF) {
            vd s = {0}, q = {0};
            for (int64_t i = 0; i < n; i++) {
                vd w = __builtin_convertvector(load_half(T, p, i * a->xs + c), vd);
                s += w;
                q += w * w;
            }
            for (int k = 0; k < HALF; k++)
                out[c + k] += s[k], out[a->c + c + k] += q[k];
        }
        for (; c < a->c; c++) {
            for (int64_t i = 0; i < n; i++) {
                const double w = act_at(T, p, i * a->xs + c);
                out[c] += w, out[a->c + c] += w * w;
            }
        }
        r += n;
    }
}

void KERNEL(stats)(const pb_stats* a) {
    if (a->dtype == PB_F32) {
        stats_of(PB_F32, a);
    } else {
        stats_of(PB_BF16, a);
    }
}
