// Linear layers: rows are copied into the blocked layout of microkernel.h, the register tiles walk
// the panels, and the epilogue is applied to a finished tile while it is in the first cache.

enum { MAX_TILES = 64 };

// tile is a register tile of output rows: where its rows of every segment lie and where they go.
typedef struct {
    int64_t rows;
    const float* a[PB_MAX_SEG];
    int64_t block[PB_MAX_SEG];
    float* y;
    const float *res, *gate;
    int64_t y_ls, res_ls;
} tile;

// factor is one product of a tile: a packed matrix and how A is walked.
typedef struct {
    const char* w;
    int64_t k, taps, c; // k = taps * c
    const int64_t* tap;
    int dtype;
} factor;

// finish turns the accumulators of one tile and panel into output: scale, bias, activation, gate,
// residual. c is [2][rows][VW], n the valid columns.
static void finish(const pb_gemm* g, const tile* t, float* c, int64_t col, int64_t n) {
    const float* bias = (const float*)g->bias;
    const int64_t rows = t->rows;
    for (int64_t j = 0; j * VW < n; j++, c += rows * VW) {
        const int64_t at = col + j * VW, m = imin(VW, n - j * VW);
        if (bias || g->scale != 1) {
            vf b = bias ? vload_n(bias + at, m) : vzero(), s = vset(g->scale);
            for (int64_t i = 0; i < rows; i++)
                vstore(c + i * VW, vfma(s, vload(c + i * VW), b));
        }
        act_vectors(c, rows, g->act);
        vf gate = t->gate ? vload_n(t->gate + at, m) : vset(1);
        for (int64_t i = 0; i < rows; i++) {
            vf v = vload(c + i * VW);
            if (t->gate) v = v * gate;
            float* y = t->y + i * t->y_ls + at;
            if (m == VW) {
                if (t->res) v = v + vload(t->res + i * t->res_ls + at);
                vstore(y, v);
            } else {
                if (t->res) v = v + vload_n(t->res + i * t->res_ls + at, m);
                vstore_n(y, v, m);
            }
        }
    }
}

// run_panel adds channels [c0, c1) of factor s to the accumulators of all tiles for panel p.
static void run_panel(const pb_gemm* g, const tile* ts, int64_t nt, const factor* f, int64_t s,
                      int64_t p, int64_t c0, int64_t c1, float* acc, int add) {
    const int64_t es = f->dtype == PB_F32 ? 4 : 2;
    const char* w = f->w + (p * f->k + c0) * NR * es;
    const int nv = g->n - p * NR <= VW ? 0 : 1;
    for (int64_t i = 0; i < nt; i++, acc += 2 * MR * VW) {
        const tile* t = &ts[i];
        span sp = {f->taps, f->tap, t->block[s], c1 - c0, f->c};
        ukrs[t->rows - 1][f->dtype][nv](t->a[s] + c0 / VW * t->block[s], w, acc, &sp, add);
    }
}

// run_tiles multiplies the tiles with panels g->p0 .. g->p1. A panel is cut into passes of about kc
// rows so that it and the tiles stay in the second cache; accumulators wait in g->c meanwhile.
static void run_tiles(const pb_gemm* g, const tile* ts, int64_t nt, const factor* fs, int64_t nf) {
    float* acc = (float*)g->c;
    const int64_t per = nt * 2 * MR * VW;
    for (int64_t p0 = g->p0; p0 < g->p1; p0 += g->chunk) {
        const int64_t p1 = imin(g->p1, p0 + g->chunk);
        int add = 0;
        for (int64_t s = 0; s < nf; s++) {
            const factor* f = &fs[s];
            const int64_t passes = imax(1, (f->k + g->kc - 1) / g->kc);
            const int64_t step = imax(VW, ((f->c + passes - 1) / passes + VW - 1) / VW * VW);
            int64_t c0 = 0;
            do {
                const int64_t c1 = imin(f->c, c0 + step);
                for (int64_t p = p0; p < p1; p++) {
                    run_panel(g, ts, nt, f, s, p, c0, c1, acc + (p - p0) * per, add);
                }
                add = 1;
                c0 = c1;
            } while (c0 < f->c);
        }
        for (int64_t p = p0; p < p1; p++) {
            for (int64_t i = 0; i < nt; i++) {
                finish(g, &ts[i], acc + (p - p0) * per + i * 2 * MR * VW, p * NR,
                       imin(NR, g->n - p * NR));
            }
        }
    }
}

// pack_rows copies k channels of rows that are ls elements apart to blocks of VW channels. The
// unused lanes of the last block are never read.
static void pack_rows(float* to, const float* from, int64_t ls, int64_t rows, int64_t k) {
    int64_t c = 0;
    for (; c + VW <= k; c += VW, to += rows * VW) {
        for (int64_t i = 0; i < rows; i++)
            vstore(to + i * VW, vload(from + i * ls + c));
    }
    if (c < k) {
        for (int64_t i = 0; i < rows; i++)
            vstore(to + i * VW, vload_n(from + i * ls + c, k - c));
    }
}

// set_rows fills in where rows l.. of batch item b of a tile go.
static void set_rows(const pb_gemm* g, tile* t, int64_t b, int64_t l) {
    t->y = (float*)g->y + b * g->y_bs + l * g->y_ls;
    t->res = g->res ? (const float*)g->res + b * g->res_bs + l * g->res_ls : 0;
    t->gate = g->gate ? (const float*)g->gate + b / g->gate_per * g->gate_s : 0;
    t->y_ls = g->y_ls;
    t->res_ls = g->res_ls;
}

static int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

static void linear(const pb_gemm* g) {
    static const int64_t no_tap = 0;
    tile ts[MAX_TILES];
    factor fs[PB_MAX_SEG];
    const pb_seg* segs = (const pb_seg*)g->seg;
    const int64_t nt = g->t1 - g->t0;
    float* a = (float*)g->a;
    for (int64_t i = 0; i < nt; i++) {
        const int64_t b = (g->t0 + i) / g->tiles, j = (g->t0 + i) % g->tiles;
        const int64_t l0 = g->rows * j / g->tiles, l1 = g->rows * (j + 1) / g->tiles;
        ts[i].rows = l1 - l0;
        set_rows(g, &ts[i], b, l0);
        for (int64_t s = 0; s < g->nseg; s++) {
            const pb_seg* seg = &segs[s];
            ts[i].a[s] = a;
            ts[i].block[s] = ts[i].rows * VW;
            if (!g->packed) {
                pack_rows(a, (const float*)seg->x + b * seg->bs + l0 * seg->ls, seg->ls, ts[i].rows,
                          seg->k);
            }
            a += MR * round_up(seg->k, VW);
        }
    }
    for (int64_t s = 0; s < g->nseg; s++) {
        fs[s] = (factor){(const char*)segs[s].w, segs[s].k, 1, segs[s].k, &no_tap, segs[s].dtype};
    }
    run_tiles(g, ts, nt, fs, g->nseg);
}
