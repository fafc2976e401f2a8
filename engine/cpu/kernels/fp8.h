// fp8 becomes bf16, which holds every number of it: four bytes of a column are in a lane, those of
// inputs 0, 2, 1 and 3, so that the lower bytes of the lane's halves are a pair of inputs, and the
// upper ones the next pair.

// Magnitudes without sign as bf16: normal numbers get another exponent, subnormal ones become normal.
#define E4M3(x)                                                                                    \
    ((x) == 0x7f ? 0x7fc0                                                                          \
     : (x) > 7   ? ((x) << 4) + 0x3c00                                                             \
     : (x) > 3   ? ((x) << 5) + 0x3b80                                                             \
     : (x) > 1   ? ((x) << 6) + 0x3b00                                                             \
                 : (x) * 0x3b00)
#define E5M2(x)                                                                                    \
    ((x) > 0x7c   ? 0x7fc0                                                                         \
     : (x) > 0x7b ? 0x7f80                                                                         \
     : (x) > 3    ? ((x) << 5) + 0x3800                                                            \
     : (x) > 1    ? ((x) << 6) + 0x3780                                                            \
                  : (x) * 0x3780)
#define F8_4(F, x) F(x), F((x) + 1), F((x) + 2), F((x) + 3)
#define F8_16(F, x) F8_4(F, x), F8_4(F, (x) + 4), F8_4(F, (x) + 8), F8_4(F, (x) + 12)
#define F8_64(F, x) F8_16(F, x), F8_16(F, (x) + 16), F8_16(F, (x) + 32), F8_16(F, (x) + 48)
static const uint16_t f8_table[2][128] = {{F8_64(E4M3, 0), F8_64(E4M3, 64)},
                                          {F8_64(E5M2, 0), F8_64(E5M2, 64)}};

// f8_words widens the lower bytes of the halves of every lane (E5: E5M2, else E4M3), or with UPPER the upper ones.
#if PB_ISA == 3
VI vu f8_words(const int E5, const int UPPER, vu c) {
    const __m512i* t = (const __m512i*)f8_table[E5];
    const __m512i up = (__m512i)c, x = UPPER ? _mm512_srli_epi16(up, 8) : up;
    const __m512i low = _mm512_permutex2var_epi16(_mm512_loadu_si512(t), x, _mm512_loadu_si512(t + 1));
    const __m512i high = _mm512_permutex2var_epi16(_mm512_loadu_si512(t + 2), x, _mm512_loadu_si512(t + 3));
    const __mmask32 above = _mm512_test_epi16_mask(x, _mm512_set1_epi16(0x40));
    const __m512i sign = UPPER ? up : _mm512_slli_epi16(up, 8);
    return (vu)_mm512_ternarylogic_epi32(_mm512_mask_mov_epi16(low, above, high), sign,
                                         _mm512_set1_epi16((short)0x8000), 0xf8);
}
#elif PB_ISA == 2
VI vu f8_words(const int E5, const int UPPER, vu c) {
    const __m256i up = (__m256i)c;
    const __m256i x = _mm256_and_si256(UPPER ? _mm256_srli_epi16(up, 8) : up, _mm256_set1_epi16(0x7f));
    const __m256i sign = UPPER ? up : _mm256_slli_epi16(up, 8);
    __m256i v = _mm256_add_epi16(_mm256_slli_epi16(x, E5 ? 5 : 4), _mm256_set1_epi16(E5 ? 0x3800 : 0x3c00));
    // subnormal numbers from a table: lower bytes, then upper ones
    char low[16];
    for (int i = 0; i < 8; i++)
        low[i] = (char)f8_table[E5][i], low[i + 8] = (char)(f8_table[E5][i] >> 8);
    const __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)low));
    const __m256i at = _mm256_add_epi16(_mm256_or_si256(x, _mm256_slli_epi16(x, 8)), _mm256_set1_epi16(0x800));
    const __m256i small = _mm256_cmpgt_epi16(_mm256_set1_epi16(8), x);
    v = _mm256_blendv_epi8(v, _mm256_shuffle_epi8(table, at), small);
    // what is no number gets the largest exponent
    const __m256i none = _mm256_cmpgt_epi16(x, _mm256_set1_epi16(E5 ? 0x7b : 0x7e));
    v = _mm256_add_epi16(v, _mm256_and_si256(none, _mm256_set1_epi16(E5 ? 0x3800 : 0x3bd0)));
    return (vu)_mm256_or_si256(v, _mm256_and_si256(sign, _mm256_set1_epi16((short)0x8000)));
}
#else
VI vu f8_words(const int E5, const int UPPER, vu c) {
    const vu x = UPPER ? c >> 8 : c;
    vu v;
    for (int i = 0; i < VW; i++)
        v[i] = f8_table[E5][x[i] & 0x7f] | (uint32_t)f8_table[E5][x[i] >> 16 & 0x7f] << 16;
    return v | (x << 8 & 0x80008000u);
}
#endif
