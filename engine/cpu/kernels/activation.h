// Activations of one vector. All but the error function are x times a logistic function, so that
// one exponential serves them and small results keep their relative accuracy.

VI vf vsigmoid_mul(vf x, vf u) { return x / (1.0f + vexp(vzero() - u)); } // x / (1 + e^-u)

// x * 0.5 (1 + erf(x / sqrt 2)). With z = |x| / sqrt 2 and t = 1 / (1 + 0.4 z), erfc(z) = e^(-z^2)
// t P(t); P interpolates at the ten Chebyshev nodes of t(9.3) .. 1, relative error 1.5e-8.
VI vf vgelu_erf(vf x) {
    vf z = vmin(vset(9.2f), vmax(x, vzero() - x) * 0.70710678f);
    vf t = 1.0f / vfma(vset(0.4f), z, vset(1.0f));
    vf p = vset(-0.0346584762f);
    p = vfma(p, t, vset(0.225348538f));
    p = vfma(p, t, vset(-0.562658914f));
    p = vfma(p, t, vset(0.631955332f));
    p = vfma(p, t, vset(-0.35410072f));
    p = vfma(p, t, vset(0.309175682f));
    p = vfma(p, t, vset(0.116967181f));
    p = vfma(p, t, vset(0.217617805f));
    p = vfma(p, t, vset(0.22463026f));
    p = vfma(p, t, vset(0.225723315f));
    vf half = 0.5f * vexp(vzero() - z * z) * t * p; // 0.5 erfc(z)
    return x * vkeep_ge(x, vzero(), 1.0f - half, half);
}

VI vf vact(const int act, vf x) {
    switch (act) {
    case PB_GELU_TANH: // 0.5 (1 + tanh u) = 1 / (1 + e^(-2u))
        return vsigmoid_mul(x, 1.59576912f * vfma(0.044715f * x * x, x, x));
    case PB_GELU_ERF:
        return vgelu_erf(x);
    case PB_SILU:
        return vsigmoid_mul(x, x);
    case PB_QUICK_GELU:
        return vsigmoid_mul(x, 1.702f * x);
    case PB_RELU:
        return vmax(vzero(), x); // a NaN stays
    case PB_SIGMOID:
        return vsigmoid_mul(vset(1.0f), x);
    default:
        return x;
    }
}

// act_vectors applies act in place to n vectors.
static void act_vectors(float* p, int64_t n, int act) {
#define ACT_CASE(A)                                                                                \
    case A:                                                                                        \
        for (int64_t i = 0; i < n; i++)                                                            \
            vstore(p + i * VW, vact(A, vload(p + i * VW)));                                        \
        break
    switch (act) {
        ACT_CASE(PB_GELU_TANH);
        ACT_CASE(PB_GELU_ERF);
        ACT_CASE(PB_SILU);
        ACT_CASE(PB_QUICK_GELU);
        ACT_CASE(PB_RELU);
        ACT_CASE(PB_SIGMOID);
    default:
        break;
    }
#undef ACT_CASE
}
