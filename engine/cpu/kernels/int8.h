// Weights of 8 bits: rows of activations rounded to 8 bits, and their products. A row of a panel is
// a word of four neighbouring inputs for every column. A level with PB_DOT multiplies them with
// words of four unsigned activations, x + 128 (vpdpbusd; the 128 go out in finish_i8), the others
// with two words of two 16-bit activations, inputs 0 and 2, then 1 and 3 (vpmaddwd).
typedef int16_t vs __attribute__((vector_size(4 * VW)));
typedef float v4 __attribute__((vector_size(16), aligned(4), may_alias));

// vdot_i8 adds the products of the parts of a and b to the 32-bit sums acc.
VI vf vdot_i8(vf acc, vf a, vf b) {
#if PB_DOT && PB_ISA == 3
    __asm__("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b));
    return acc;
#elif PB_DOT
    const vu x = (vu)a;
    const vi y = (vi)b;
    vi sum = (vi)acc;
    sum += (vi)(x & 255) * (y << 24 >> 24) + (vi)(x >> 8 & 255) * (y << 16 >> 24);
    return (vf)(sum + (vi)(x >> 16 & 255) * (y << 8 >> 24) + (vi)(x >> 24) * (y >> 24));
#elif PB_ISA == 3
    return (vf)((vi)acc + (vi)_mm512_madd_epi16((__m512i)a, (__m512i)b));
#elif PB_ISA == 2
    return (vf)((vi)acc + (vi)_mm256_madd_epi16((__m256i)a, (__m256i)b));
#else
    const vi x = (vi)a, y = (vi)b;
    return (vf)((vi)acc + (x << 16 >> 16) * (y << 16 >> 16) + (x >> 16) * (y >> 16));
#endif
}

// vhalf_i8 widens bytes 0 and 2 of every word, or bytes 1 and 3, to 16 bits.
VI vf vhalf_i8(const int half, vf b) {
    const vs w = (vs)b;
    return half ? (vf)(w >> 8) : (vf)((vs)(w << 8) >> 8);
}

#ifndef TWIN
// rotate_by is a factor of engine.Rotate at stride s.
static void rotate_by(float* v, int64_t n, int64_t s) {
    if (s == 1) {
        for (int64_t i = 0; i < n; i += 4) {
            const float a = v[i], b = v[i + 1], c = v[i + 2], d = v[i + 3], sum = (a + b) + (c + d);
            v[i] = sum - 2 * d, v[i + 1] = sum - 2 * c, v[i + 2] = sum - 2 * b, v[i + 3] = sum - 2 * a;
        }
        return;
    }
    for (int64_t at = 0; at < n; at += 4 * s) {
        for (int64_t j = at; j < at + s; j += 4) {
            v4 *pa = (v4*)(v + j), *pb = (v4*)(v + j + s);
            v4 *pc = (v4*)(v + j + 2 * s), *pd = (v4*)(v + j + 3 * s);
            const v4 a = *pa, b = *pb, c = *pc, d = *pd, sum = (a + b) + (c + d);
            *pa = sum - 2 * d, *pb = sum - 2 * c, *pc = sum - 2 * b, *pd = sum - 2 * a;
        }
    }
}

VI float round_bf16(float v) { return widen_bf16(narrow_bf16(v)); }

VI vf vround_bf16(vf v) {
    uint16_t h[VW];
    vstore_bf16(h, v);
    return vload_bf16(h);
}

// quantise_rows rounds rows r0..r1 as ref.QuantiseRow does and stores them as words.
void KERNEL(quantise_rows)(const pb_quant* a) {
    const int narrow = a->x_dtype == PB_BF16;
    const int64_t k = a->k, full = (k + 3) / 4;
    float* v = (float*)a->tmp; // room for k + 3 values, then as many vectors
    for (int64_t r = a->r0; r < a->r1; r++) {
        const char* x = (const char*)a->x +
                        (r / a->rows * a->bs + r % a->rows * a->ls) * act_size((int)a->x_dtype);
        for (int64_t i = 0; i < k; i += VW) {
            const int64_t n = imin(VW, k - i);
            vstore(v + i, narrow ? load_act(PB_BF16, x, i, n) : load_act(PB_F32, x, i, n));
        }
        if (a->rotated) {
            for (int64_t s = 1; s < a->rotated; s *= 4)
                rotate_by(v, k, s);
            const vf norm = vset(a->norm);
            for (int64_t i = 0; i < k; i += VW) {
                const vf y = vload(v + i) * norm;
                vstore(v + i, narrow ? vround_bf16(y) : y);
            }
        }
        vi top = {0}; // magnitudes are ordered as their bits are, NaN above all
        for (int64_t i = 0; i < k; i += VW) {
            vi bits = (vi)vload(v + i) & 0x7fffffff;
            if (k - i < VW) bits &= vlanes() < (int32_t)(k - i);
            const vi more = bits > top;
            top = (bits & more) | (top & ~more);
        }
        int32_t most = 0;
        for (int i = 0; i < VW; i++)
            most = top[i] > most ? top[i] : most;
        float scale;
        memcpy(&scale, &most, 4);
        scale = scale / 127;
        if (scale < 1e-30f) scale = 1e-30f;
        const vf by = vset(narrow ? round_bf16(scale) : scale);
        if (most >= 0x7f800000) scale = NAN;
        ((float*)a->scales)[r] = scale;
        int32_t* q = (int32_t*)v;
        for (int64_t i = 0; i < k; i += VW) {
            vf y = vload(v + i) / by;
            if (narrow) y = vround_bf16(y);
            y = vmin(vmax(vround(y), vset(-128)), vset(127));
            const vi w = __builtin_convertvector(y, vi);
            memcpy(q + i, &w, sizeof w);
        }
        for (int64_t i = k; i < 4 * full; i++)
            q[i] = 0;
        uint32_t* to = (uint32_t*)a->words + r * (PB_DOT ? 1 : 2) * full;
        for (int64_t i = 0; i < full; i++, q += 4) {
#if PB_DOT
            to[i] = (uint32_t)(q[0] + 128) | (uint32_t)(q[1] + 128) << 8 |
                    (uint32_t)(q[2] + 128) << 16 | (uint32_t)(q[3] + 128) << 24;
#else
            to[2 * i] = ((uint32_t)q[0] & 0xffff) | (uint32_t)q[2] << 16;
            to[2 * i + 1] = ((uint32_t)q[1] & 0xffff) | (uint32_t)q[3] << 16;
#endif
        }
    }
}

// pack_i8 writes one panel.
static void pack_i8(const pb_pack* a, int64_t p) {
    const int64_t rows = (a->k + 3) / 4, cols = imin(NR, a->n - p * NR);
    uint32_t* head = (uint32_t*)a->dst + p * (I8_HEAD + rows) * NR;
    memset(head, 0, (size_t)((I8_HEAD + rows) * NR * 4));
    memcpy(head, (const float*)a->scales + p * NR, (size_t)cols * 4);
    for (int64_t j = 0; j < cols; j++) {
        const int8_t* src = (const int8_t*)a->src + (p * NR + j) * a->row;
        int32_t sum = 0;
        for (int64_t k = 0; k < a->k; k++) {
            sum += src[k];
            head[(I8_HEAD + k / 4) * NR + j] |= (uint32_t)(uint8_t)src[k] << 8 * (k % 4);
        }
        head[NR + j] = (uint32_t)(128 * sum);
    }
}
#endif

// finish_i8 turns the 32-bit sums of a tile and panel into f32: sum * (factor of x * factor of w).
static void finish_i8(const char* head, const float* scales, int64_t rows, float* c) {
    for (int64_t j = 0; j < 2; j++) {
        const vf w = vload((const float*)head + j * VW);
        const vi shift = PB_DOT ? (vi)vload((const float*)head + NR + j * VW) : (vi){0};
        for (int64_t i = 0; i < rows; i++, c += VW) {
            const vi sum = (vi)vload(c) - shift;
            vstore(c, __builtin_convertvector(sum, vf) * (vset(scales[i]) * w));
        }
    }
}
