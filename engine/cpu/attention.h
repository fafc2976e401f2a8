// Attention with an online softmax (Milakov and Gimelshein, arXiv:1805.02867): keys and values of a
// head are packed into panels once; a tile of queries then visits blocks of keys and keeps its
// running maximum, sum and output.

enum { KEY_BLOCK = 512 }; // keys whose scores for one tile stay in the first cache

// attn_pack packs keys [l0, l1) of one head (l0 a multiple of NR): keys to panels [Lk/NR][D][NR],
// values to panels [D/NR][Lk][NR].
static void attn_pack(const pb_attn* a) {
    const float* k = (const float*)a->k + a->b * a->k_b + a->h * a->k_h;
    const float* v = (const float*)a->v + a->b * a->v_b + a->h * a->v_h;
    for (int64_t p = a->l0; p < a->l1; p += NR) {
        float* to = (float*)a->kp + p * a->d;
        const int64_t cols = imin(NR, a->keys - p);
        for (int64_t j = 0; j < NR; j++) {
            const float* row = k + (p + j) * a->k_l;
            if (j < cols) {
                for (int64_t d = 0; d < a->d; d++)
                    to[d * NR + j] = row[d];
            } else {
                for (int64_t d = 0; d < a->d; d++)
                    to[d * NR + j] = 0;
            }
        }
    }
    for (int64_t d = 0; d < a->d; d += VW) {
        const int64_t n = imin(VW, a->d - d);
        float* to = (float*)a->vp + (d / NR * a->keys) * NR + d % NR;
        for (int64_t l = a->l0; l < imin(a->l1, a->keys); l++) {
            vstore(to + l * NR,
                   n == VW ? vload(v + l * a->v_l + d) : vload_n(v + l * a->v_l + d, n));
        }
    }
    if (a->d % NR && a->d % NR <= VW) { // a last panel that has only its first half
        float* to = (float*)a->vp + (a->d / NR * a->keys) * NR + VW;
        for (int64_t l = a->l0; l < imin(a->l1, a->keys); l++)
            vstore(to + l * NR, vzero());
    }
}

#define LOG2E 1.44269504f
#define LN2 0.693147181f

// mask_scores adds the bias and hides keys behind the causal diagonal and behind the last valid
// key. s is [blocks][rows][VW]; the tile's first query is l, the first key k0, n keys are valid.
// Scores are in units of ln 2, so that the softmax needs powers of two only.
static void mask_scores(const pb_attn* a, float* s, int64_t rows, int64_t l, int64_t k0,
                        int64_t n) {
    const vf hidden = vset(-INFINITY), unit = vset(LOG2E);
    for (int64_t i = 0; i < rows; i++) {
        const float* bias =
            a->bias ? (const float*)a->bias + a->h * a->bias_h + (l + i) * a->bias_l + k0 : 0;
        const int64_t seen = a->causal ? imax(0, imin(n, l + i + 1 - k0)) : n;
        for (int64_t c = 0; c < n; c += VW) {
            float* p = s + (c / VW * rows + i) * VW;
            vf v = vload(p);
            if (bias) v = vfma(n - c >= VW ? vload(bias + c) : vload_n(bias + c, n - c), unit, v);
            if (seen < c + VW) {
                vf at = __builtin_convertvector(vlanes(), vf);
                v = vkeep_ge(at, vset((float)(seen - c)), hidden, v);
            }
            vstore(p, v);
        }
    }
}

// soften replaces scores by 2^(score - maximum) and updates the running maximum m and sum of each
// row; back receives the factor that earlier results of the row shrink by. Returns whether any is
// not 1. hide (a constant) is set where some scores may be -infinity.
VI int soften(const int hide, float* s, int64_t rows, int64_t blocks, float* m, float* sum,
              float* back) {
    int shrink = 0;
    for (int64_t i = 0; i < rows; i++) {
        float* p = s + i * VW;
        vf top = vset(m[i]);
        for (int64_t c = 0; c < blocks; c++)
            top = vmax(top, vload(p + c * rows * VW));
        const float now = vtop(top);
        const float base = hide && now == -INFINITY ? 0 : now; // nothing visible yet: all become 0
        vf total = vzero(), b = vset(base);
        for (int64_t c = 0; c < blocks; c++) {
            vf e = vexp2(vload(p + c * rows * VW) - b, hide);
            vstore(p + c * rows * VW, e);
            total = total + e;
        }
        back[i] = m[i] == now ? 1 : m[i] == -INFINITY ? 0 : exp2f(m[i] - now);
        shrink |= back[i] != 1;
        sum[i] = sum[i] * back[i] + vsum(total);
        m[i] = now;
    }
    return shrink;
}

// queries is a block of queries that is worked on: per tile its rows, their scaled values and
// results.
typedef struct {
    int64_t tiles, dk, dv; // head sizes rounded up to lanes and panels
    float *s, *q, *o;      // scores of one tile; [tiles][dk/VW][rows][VW]; [tiles][dv/VW][rows][VW]
    float m[MAX_TILES * MR], sum[MAX_TILES * MR];
} queries;

static int64_t tile_start(const pb_attn* a, const queries* b, int64_t t) {
    return (a->l1 - a->l0) * t / b->tiles;
}

static void load_queries(const pb_attn* a, queries* b) {
    const vf unit = vset(a->scale * LOG2E);
    for (int64_t t = 0; t < b->tiles; t++) {
        const int64_t t0 = tile_start(a, b, t), rows = tile_start(a, b, t + 1) - t0;
        float* to = b->q + t * MR * b->dk;
        pack_rows(to, (const float*)a->q + a->b * a->q_b + (a->l0 + t0) * a->q_l + a->h * a->q_h,
                  a->q_l, rows, a->d);
        for (int64_t i = 0; i < rows * b->dk; i += VW)
            vstore(to + i, vload(to + i) * unit);
    }
    for (int64_t i = 0; i < b->tiles * MR; i++)
        b->m[i] = -INFINITY, b->sum[i] = 0;
    memset(b->o, 0, (size_t)(b->tiles * MR * b->dv) * 4);
}

// visit lets tile t see keys [k0, k0 + n).
static void visit(const pb_attn* a, queries* b, int64_t t, int64_t k0, int64_t n) {
    static const int64_t no_tap = 0;
    const int64_t t0 = tile_start(a, b, t), rows = tile_start(a, b, t + 1) - t0;
    float back[MR];
    float *o = b->o + t * MR * b->dv, *m = b->m + t * MR, *sum = b->sum + t * MR;
    const span over_d = {1, &no_tap, rows * VW, a->d, 0}, over_keys = {1, &no_tap, rows * VW, n, 0};
    for (int64_t p = 0; p < n; p += NR) {
        ukrs[rows - 1][PB_F32][n - p <= VW ? 0 : 1](b->q + t * MR * b->dk,
                                                    (const float*)a->kp + (k0 + p) * a->d,
                                                    b->s + p * rows, &over_d, 0);
    }
    const int64_t blocks = (n + VW - 1) / VW;
    int shrink;
    if (a->bias || n % VW || (a->causal && k0 + n > a->l0 + t0 + 1)) {
        mask_scores(a, b->s, rows, a->l0 + t0, k0, n);
        shrink = soften(1, b->s, rows, blocks, m, sum, back);
    } else {
        shrink = soften(0, b->s, rows, blocks, m, sum, back);
    }
    for (int64_t c = 0; shrink && c < b->dv / VW; c++) {
        for (int64_t i = 0; i < rows; i++) {
            float* p = o + (c * rows + i) * VW;
            vstore(p, vload(p) * back[i]);
        }
    }
    for (int64_t d = 0; d < a->d; d += NR) {
        ukrs[rows - 1][PB_F32][a->d - d <= VW ? 0 : 1](
            b->s, (const float*)a->vp + d * a->keys + k0 * NR, o + d * rows, &over_keys, 1);
    }
}

static void store_results(const pb_attn* a, const queries* b) {
    for (int64_t t = 0; t < b->tiles; t++) {
        const int64_t t0 = tile_start(a, b, t), rows = tile_start(a, b, t + 1) - t0;
        for (int64_t i = 0; i < rows; i++) {
            const int64_t at = a->l0 + t0 + i;
            const float l = b->sum[t * MR + i];
            float* to = (float*)a->o + a->b * a->o_b + at * a->o_l + a->h * a->o_h;
            const vf f = vset(l == 0 ? 0 : 1 / l);
            for (int64_t d = 0; d < a->d; d += VW) {
                const vf v = vload(b->o + t * MR * b->dv + (d / VW * rows + i) * VW) * f;
                if (a->d - d >= VW) {
                    vstore(to + d, v);
                } else {
                    vstore_n(to + d, v, a->d - d);
                }
            }
            if (a->lse) {
                float* lse = (float*)a->lse + a->b * a->lse_b + a->h * a->lse_h;
                lse[at] = l == 0 ? -INFINITY : b->m[t * MR + i] * LN2 + logf(l);
            }
        }
    }
}

// attn computes queries [l0, l1) of one head, at most MAX_TILES tiles.
static void attn(const pb_attn* a) {
    queries b;
    b.tiles = (a->l1 - a->l0 + MR - 1) / MR;
    b.dk = round_up(a->d, VW);
    b.dv = round_up(a->d, NR);
    b.s = (float*)a->tmp;
    b.q = b.s + KEY_BLOCK * MR;
    b.o = b.q + b.tiles * MR * b.dk;
    load_queries(a, &b);
    for (int64_t k0 = 0; k0 < a->keys; k0 += KEY_BLOCK) {
        for (int64_t t = 0; t < b.tiles; t++) {
            int64_t n = imin(a->keys - k0, KEY_BLOCK);
            if (a->causal) n = imin(n, a->l0 + tile_start(a, &b, t + 1) - k0);
            if (n > 0) visit(a, &b, t, k0, n);
        }
    }
    store_results(a, &b);
}
