package sampling

import (
	"fmt"
	"math"
)

// Method describes a sampler with what its caller must know before a run.
type Method struct {
	// Name is ComfyUI's name.
	Name string
	// Func is the update rule. Use Sample to run it, which checks the run first.
	Func Sampler
	// Noise is the source that Run.Noise must draw from.
	Noise NoiseKind
	// NeedsUncond means that Run.Denoise must return the negative's x0, even at cfg 1.
	NeedsUncond bool
	// DiscardPenultimate means that KSampler drops the last sigma before 0.
	DiscardPenultimate bool
	// Synchronous means that the sampler's steps depend on the whole latent, so that its parts cannot run
	// independently.
	Synchronous bool
	// MaskNoise means that a masked latent is mixed with noise from seed+1 (MaskNoise) instead of the initial noise.
	MaskNoise bool
	// Options are the parameters, in order.
	Options []Option
}

// Samplers returns 44 samplers of ComfyUI in its order: those of 0.8.0.
func Samplers() []Method {
	with := func(kind NoiseKind, name string, f Sampler, options ...Option) Method {
		return Method{Name: name, Func: f, Noise: kind, Options: options}
	}
	plain := func(name string, f Sampler, options ...Option) Method { return with(NoNoise, name, f, options...) }
	churned := func(name string, f Sampler) Method { return with(Continued, name, f, churnOptions()...) }
	ancestral := func(name string, f Sampler, options ...Option) Method { return with(Ancestral, name, f, options...) }
	sde := func(name string, f Sampler, options ...Option) Method {
		return with(Brownian, name, f, etaOptions(options...)...)
	}
	pp := func(e Method) Method { e.NeedsUncond = true; return e }
	discard := func(e Method) Method { e.DiscardPenultimate = true; return e }
	mid, heun := solverOption("midpoint", "midpoint", "heun"), solverOption("heun", "midpoint", "heun")
	phi1, phi2 := solverOption("phi_1", "phi_1", "phi_2"), solverOption("phi_2", "phi_1", "phi_2")
	half := fractionOption("r", 0.5, 100)
	gamma := Option{Name: "ge_gamma", Default: 2.0, Min: -100, Max: 100}
	adaptive := ancestral("dpm_adaptive", sampleDPMAdaptive, adaptiveOptions()...)
	adaptive.Synchronous = true
	ddim := churned("ddim", sampleEuler)
	ddim.MaskNoise = true
	return []Method{
		churned("euler", sampleEuler),
		pp(plain("euler_cfg_pp", sampleEulerCFGPP)),
		ancestral("euler_ancestral", sampleEulerAncestral, etaOptions()...),
		pp(ancestral("euler_ancestral_cfg_pp", sampleEulerCFGPP, etaOptions()...)),
		churned("heun", sampleHeun),
		churned("heunpp2", sampleHeunPP2),
		plain("exp_heun_2_x0", sampleExpHeun2X0, phi2),
		ancestral("exp_heun_2_x0_sde", sampleExpHeun2X0, etaOptions(phi2)...),
		discard(churned("dpm_2", sampleDPM2)),
		discard(ancestral("dpm_2_ancestral", sampleDPM2Ancestral, etaOptions()...)),
		plain("lms", sampleLMS, Option{Name: "order", Default: 4, Min: 1, Max: 100}),
		plain("dpm_fast", sampleDPMFast),
		adaptive,
		ancestral("dpmpp_2s_ancestral", sampleDPMPP2SAncestral, etaOptions()...),
		pp(ancestral("dpmpp_2s_ancestral_cfg_pp", sampleDPMPP2SAncestral, etaOptions()...)),
		sde("dpmpp_sde", sampleDPMPPSDE, half),
		sde("dpmpp_sde_gpu", sampleDPMPPSDE, half),
		plain("dpmpp_2m", sampleDPMPP2M),
		pp(plain("dpmpp_2m_cfg_pp", sampleDPMPP2MCFGPP)),
		sde("dpmpp_2m_sde", sampleDPMPP2MSDE, mid),
		sde("dpmpp_2m_sde_gpu", sampleDPMPP2MSDE, mid),
		sde("dpmpp_2m_sde_heun", sampleDPMPP2MSDE, heun),
		sde("dpmpp_2m_sde_heun_gpu", sampleDPMPP2MSDE, heun),
		sde("dpmpp_3m_sde", sampleDPMPP3MSDE),
		sde("dpmpp_3m_sde_gpu", sampleDPMPP3MSDE),
		ancestral("ddpm", sampleDDPM),
		ancestral("lcm", sampleLCM),
		plain("ipndm", sampleIPNDM, orderOption("max_order", 4, 1, 4)),
		plain("ipndm_v", sampleIPNDMV, orderOption("max_order", 4, 1, 4)),
		plain("deis", sampleDEIS, orderOption("max_order", 3, 1, 4),
			Option{Name: "deis_mode", Default: "tab", Allowed: []string{"tab"}}),
		plain("res_multistep", sampleResMultistep),
		pp(plain("res_multistep_cfg_pp", sampleResMultistep)),
		ancestral("res_multistep_ancestral", sampleResMultistep, etaOptions()...),
		pp(ancestral("res_multistep_ancestral_cfg_pp", sampleResMultistep, etaOptions()...)),
		plain("gradient_estimation", sampleGradientEstimation, gamma),
		pp(plain("gradient_estimation_cfg_pp", sampleGradientEstimation, gamma)),
		ancestral("er_sde", sampleERSDE, append([]Option{
			solverOption("ER-SDE", "ER-SDE", "Reverse-time SDE", "ODE"), orderOption("max_stage", 3, 1, 3),
		}, etaOptions()...)...),
		ancestral("seeds_2", sampleSEEDS2, etaOptions(fractionOption("r", 0.5, 1), phi1)...),
		ancestral("seeds_3", sampleSEEDS3,
			etaOptions(fractionOption("r_1", 1.0/3, 1), fractionOption("r_2", 2.0/3, 1))...),
		ancestral("sa_solver", sampleSASolver, append(saOptions(), Option{Name: "use_pece", Default: false})...),
		ancestral("sa_solver_pece", sampleSASolverPECE, saOptions()...),
		ddim,
		discard(plain("uni_pc", sampleUniPC)),
		discard(plain("uni_pc_bh2", sampleUniPCBH2)),
	}
}

// AlternativeEulerCFGPP returns the sampler behind the node SamplerEulerCFGpp with version "alternative", which is not
// in the list of Samplers.
func AlternativeEulerCFGPP() Method {
	return Method{Name: "euler_pp", Func: sampleEulerPP, NeedsUncond: true}
}

// SamplerNames returns the names of Samplers in order.
func SamplerNames() []string {
	return names(Samplers(), func(e Method) string { return e.Name })
}

// FindSampler returns the method of a name, including AlternativeEulerCFGPP. The error for an unknown name lists the
// known ones.
func FindSampler(name string) (Method, error) {
	for _, e := range append(Samplers(), AlternativeEulerCFGPP()) {
		if e.Name == name {
			return e, nil
		}
	}
	return Method{}, fmt.Errorf("sampler %q is unknown: want one of %q", name, SamplerNames())
}

func orderOption(name string, preset, low, high int) Option {
	return Option{Name: name, Default: preset, Min: float64(low), Max: float64(high)}
}

func solverOption(preset string, allowed ...string) Option {
	return Option{Name: "solver_type", Default: preset, Allowed: allowed}
}

// fractionOption is the position of a stage inside a step.
func fractionOption(name string, preset, top float64) Option {
	return Option{Name: name, Default: preset, Min: 0.01, Max: top}
}

// etaOptions returns the strength and the scale of a stochastic sampler's noise, followed by more.
func etaOptions(more ...Option) []Option {
	return append([]Option{{Name: "eta", Default: 1.0, Max: 100}, {Name: "s_noise", Default: 1.0, Max: 100}}, more...)
}

func churnOptions() []Option {
	inf := math.Inf(1)
	return []Option{
		{Name: "s_churn", Default: 0.0, Max: inf},
		{Name: "s_tmin", Default: 0.0, Max: inf},
		{Name: "s_tmax", Default: inf, Max: inf},
		{Name: "s_noise", Default: 1.0, Max: 100},
	}
}

func adaptiveOptions() []Option {
	return []Option{
		orderOption("order", 3, 2, 3),
		{Name: "rtol", Default: 0.05, Max: 100},
		{Name: "atol", Default: 0.0078, Max: 100},
		{Name: "h_init", Default: 0.05, Max: 100},
		{Name: "pcoeff", Default: 0.0, Max: 100},
		{Name: "icoeff", Default: 1.0, Max: 100},
		{Name: "dcoeff", Default: 0.0, Max: 100},
		{Name: "accept_safety", Default: 0.81, Max: 100},
		{Name: "eta", Default: 0.0, Max: 100},
		{Name: "s_noise", Default: 1.0, Max: 100},
	}
}

func saOptions() []Option {
	return []Option{
		{Name: "eta", Default: 1.0, Max: 10},
		{Name: "sde_start_percent", Default: 0.2, Max: 1},
		{Name: "sde_end_percent", Default: 0.8, Max: 1},
		{Name: "s_noise", Default: 1.0, Max: 100},
		orderOption("predictor_order", 3, 1, 6),
		orderOption("corrector_order", 4, 0, 6),
		{Name: "simple_order_2", Default: false},
	}
}
