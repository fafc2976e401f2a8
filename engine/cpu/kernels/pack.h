// Stored matrices to panels, and rows of stored tables to f32.

VI float load_f32(const char* p) {
    float v;
    memcpy(&v, p, 4);
    return v;
}
VI uint16_t load_u16(const char* p) {
    uint16_t v;
    memcpy(&v, p, 2);
    return v;
}

enum { PACK_DEPTH = 64 };

// PACK_PANEL writes one panel of f32 or f16 in pieces that stay in the first cache; VALUE reads
// element e of the source. Inside a piece the rows are read one after the other: NR rows at once
// may all lie on one set.
#define PACK_PANEL(T, VALUE)                                                                       \
    for (int64_t k0 = 0; k0 < a->k; k0 += PACK_DEPTH) {                                            \
        T* to = (T*)a->dst + (p * a->k + k0) * NR;                                                 \
        const int64_t depth = imin(PACK_DEPTH, a->k - k0);                                         \
        for (int64_t j = 0; j < cols; j++) {                                                       \
            for (int64_t k = 0; k < depth; k++) {                                                  \
                const int64_t e = (p * NR + j) * a->row + k0 + k;                                  \
                to[k * NR + j] = VALUE;                                                            \
            }                                                                                      \
        }                                                                                          \
        for (int64_t k = 0; k < depth; k++) {                                                      \
            for (int64_t j = cols; j < NR; j++)                                                    \
                to[k * NR + j] = 0;                                                                \
        }                                                                                          \
    }

// pack_words writes one panel of words; lut (not 0) widens fp8 to bf16.
VI void pack_words(const pb_pack* a, int64_t p, const uint16_t* lut) {
    const int64_t taps = a->k / a->c, rows = (a->c + 1) / 2, cols = imin(NR, a->n - p * NR);
    const char* src = (const char*)a->src;
    uint32_t* to = (uint32_t*)a->dst + p * taps * rows * NR;
    for (int64_t t = 0; t < taps; t++, to += rows * NR) {
        for (int64_t q0 = 0; q0 < rows; q0 += PACK_DEPTH) {
            const int64_t q1 = imin(rows, q0 + PACK_DEPTH);
            for (int64_t j = 0; j < cols; j++) {
                const int64_t e = (p * NR + j) * a->row + t * a->c;
                for (int64_t q = q0; q < q1; q++) {
                    const int64_t i = e + 2 * q;
                    const int both = 2 * q + 1 < a->c;
                    uint32_t lo = lut ? lut[(uint8_t)src[i]] : load_u16(src + 2 * i);
                    uint32_t hi = !both ? 0
                                  : lut ? lut[(uint8_t)src[i + 1]]
                                        : load_u16(src + 2 * i + 2);
                    to[q * NR + j] = lo | hi << 16;
                }
            }
            for (int64_t q = q0; q < q1; q++) {
                for (int64_t j = cols; j < NR; j++)
                    to[q * NR + j] = 0;
            }
        }
    }
}

void KERNEL(pack)(const pb_pack* a) {
    const char* src = (const char*)a->src;
    for (int64_t p = a->p0; p < a->p1; p++) {
        const int64_t cols = imin(NR, a->n - p * NR);
        if (a->src_dtype == PB_BLOCKS) {
            pack_blocks(a, p);
        } else if (a->src_dtype == PB_I8) {
            pack_i8(a, p);
        } else if (a->src_dtype == PB_F32) {
            PACK_PANEL(float, load_f32(src + 4 * e));
        } else if (a->src_dtype == PB_F16) {
            PACK_PANEL(uint16_t, load_u16(src + 2 * e));
        } else if (a->src_dtype == PB_BF16) {
            pack_words(a, p, 0);
        } else {
            pack_words(a, p, (const uint16_t*)a->lut);
        }
    }
}

static void widen_row(float* y, const char* p, int64_t n, int dtype, const uint16_t* lut) {
    int64_t i = 0;
    switch (dtype) {
    case PB_F32:
        memcpy(y, p, (size_t)n * 4);
        return;
    case PB_BF16:
        for (; i + VW <= n; i += VW)
            vstore(y + i, vload_bf16((const uint16_t*)p + i));
        break;
    case PB_F16:
        for (; i + VW <= n; i += VW)
            vstore(y + i, vload_f16((const uint16_t*)p + i));
        break;
    default:
        for (; i < n; i++) {
            const uint32_t bits = (uint32_t)lut[(uint8_t)p[i]] << 16;
            memcpy(y + i, &bits, 4);
        }
    }
    if (i < n) {
        uint16_t last[VW] = {0};
        memcpy(last, p + 2 * i, (size_t)(n - i) * 2);
        vstore_n(y + i, dtype == PB_BF16 ? vload_bf16(last) : vload_f16(last), n - i);
    }
}

// narrow_row is widen_row with a result in bf16.
static void narrow_row(uint16_t* y, const char* p, int64_t n, int dtype, const uint16_t* lut) {
    float piece[64];
    const int64_t es = dtype == PB_F32 ? 4 : dtype <= PB_F16 ? 2 : 1;
    if (dtype == PB_BF16) {
        memcpy(y, p, (size_t)n * 2);
        return;
    }
    for (int64_t i = 0; i < n; i += 64) {
        const int64_t m = imin(64, n - i);
        widen_row(piece, p + i * es, m, dtype, lut);
        for (int64_t j = 0; j < m; j += VW)
            store_act(PB_BF16, y, i + j, load_act(PB_F32, piece, j, imin(VW, m - j)),
                      imin(VW, m - j));
    }
}

void KERNEL(gather)(const pb_gather* a) {
    const int32_t* ids = (const int32_t*)a->ids;
    const uint16_t* lut = (const uint16_t*)a->lut;
    const int64_t es = a->dtype == PB_F32 ? 4 : a->dtype <= PB_F16 ? 2 : 1;
    for (int64_t r = a->r0; r < a->r1; r++) {
        const char* row = (const char*)a->table + ids[r] * a->table_s * es;
        if (a->y_dtype == PB_F32) {
            widen_row((float*)a->y + r * a->y_s, row, a->e, a->dtype, lut);
        } else {
            narrow_row((uint16_t*)a->y + r * a->y_s, row, a->e, a->dtype, lut);
        }
    }
}
