package node

import (
	"time"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/latent"
	"patchbay/models/sampling"
	"patchbay/models/weights"
	"patchbay/parallel"
)

// Model is a MODEL: a diffusion model that has been described but not loaded. Copies with other adapters or model sampling share the weights.
type Model struct {
	Name     string // as the workflow calls it
	Key      string // file and header hash: equal keys share weights
	Variant  string // of package models: "flux", "pixart_sigma" ...
	Spec     *dit.Spec
	Format   latent.Format
	Sampling *sampling.ModelSampling
	// Differential is DifferentialDiffusion's strength; nil: ordinary masks.
	Differential *float32
	// Cache is what EasyCache or LazyCache set; nil: every evaluation runs.
	Cache   *parallel.Cache
	load    func(ops engine.Ops, held dit.Held) (dit.Model, error)
	declare func() ([]weights.Declared, error) // all tensors of the model
	bytes   int64
	narrow  bool      // most weights are packed as bf16
	loras   []loraUse // adapters, in the order in which they were added
}

// request returns what parallel needs to know of the model.
func (m *Model) request() parallel.Model {
	return parallel.Model{Key: m.Key, Spec: m.Spec, Load: m.load, WeightBytes: m.bytes}
}

// withSampling returns a copy with another model sampling.
func (m *Model) withSampling(s *sampling.ModelSampling) *Model {
	c := *m
	c.Sampling = s
	return &c
}

// resident is something with weights that a Runner keeps between jobs.
type resident interface {
	Bytes() int64
	Close()
}

// lent takes weights from the runner's cache, or loads them and keeps them there. It must be called inside do: loading uses the device.
func lent[T resident](c *Call, key string, load func() (T, error)) (T, error) {
	if w, ok := c.run.weights.get(key); ok {
		if t, ok := w.(T); ok {
			return t, nil
		}
	}
	began := time.Now()
	t, err := load()
	c.spent.Load += seconds(began)
	if err != nil {
		return t, err
	}
	c.run.weights.put(key, t, t.Bytes())
	return t, nil
}
