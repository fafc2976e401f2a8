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

// bf16_place is where column j of a bf16 panel lies, see vload_w2.
VI int64_t bf16_place(int64_t j) { return j < VW ? 2 * j : 2 * (j - VW) + 1; }

// PACK_PANEL writes one panel in pieces that stay in the first cache; VALUE reads element e of the
// source, PLACE is where column j goes. Inside a piece the rows are read one after the other: NR
// rows at once may all lie on one set.
#define PACK_PANEL(T, PLACE, VALUE)                                                                \
    for (int64_t k0 = 0; k0 < a->k; k0 += PACK_DEPTH) {                                            \
        T* to = (T*)a->dst + (p * a->k + k0) * NR;                                                 \
        const int64_t depth = imin(PACK_DEPTH, a->k - k0);                                         \
        for (int64_t j = 0; j < cols; j++) {                                                       \
            for (int64_t k = 0; k < depth; k++) {                                                  \
                const int64_t e = (p * NR + j) * a->row + k0 + k;                                  \
                to[k * NR + PLACE] = VALUE;                                                        \
            }                                                                                      \
        }                                                                                          \
        for (int64_t k = 0; k < depth; k++) {                                                      \
            for (int64_t j = cols; j < NR; j++)                                                    \
                to[k * NR + PLACE] = 0;                                                            \
        }                                                                                          \
    }

static void pack(const pb_pack* a) {
    const char* src = (const char*)a->src;
    const uint16_t* lut = (const uint16_t*)a->lut;
    for (int64_t p = a->p0; p < a->p1; p++) {
        const int64_t cols = imin(NR, a->n - p * NR);
        if (a->src_dtype == PB_F32) {
            PACK_PANEL(float, j, load_f32(src + 4 * e));
        } else if (a->src_dtype == PB_F16) {
            PACK_PANEL(uint16_t, j, load_u16(src + 2 * e));
        } else if (a->src_dtype == PB_BF16) {
            PACK_PANEL(uint16_t, bf16_place(j), load_u16(src + 2 * e));
        } else {
            PACK_PANEL(uint16_t, bf16_place(j), lut[(uint8_t)src[e]]);
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

static void gather(const pb_gather* a) {
    const int32_t* ids = (const int32_t*)a->ids;
    const int64_t es = a->dtype == PB_F32 ? 4 : a->dtype <= PB_F16 ? 2 : 1;
    for (int64_t r = a->r0; r < a->r1; r++) {
        widen_row((float*)a->y + r * a->y_s, (const char*)a->table + ids[r] * a->table_s * es, a->e,
                  a->dtype, (const uint16_t*)a->lut);
    }
}
