package text

import (
	"fmt"

	"patchbay/engine"
	"patchbay/models/weights"
)

// Deep returns the layers of a picture encoder, counted from the last (-1), whose states Features reads.
func Deep() []int { return []int{-20, -11, -2} }

// Features turns the states of three SigLIP layers into rows that a FLUX.1 model reads before its text: the feature
// projector of USO (arXiv:2508.18966; ComfyUI comfy_extras/nodes_model_patch.py). It holds only weights.
type Features struct {
	loaded[featureWeights]
}

type featureWeights struct {
	Low  feature `weight:"low_"`
	Mid  feature `weight:"mid_"`
	High feature `weight:"high_"`
}

// feature projects the states [L, E] of one layer to S rows of T values, in the letters of the shape tags.
type feature struct {
	Tokens *engine.Weight `weight:"embedding_linear.0" shape:"S,L"`
	Norm   affine         `weight:"layer_norm"`
	Rows   *engine.Weight `weight:"projection" shape:"T,E"`
}

// featureEps is the epsilon of the layer norms.
const featureEps = 1e-5

// featurePrefix is the prefix that files give to the projector's names.
const featurePrefix = "feature_embedder."

// FeatureSizes holds the sizes of a projector: Tokens L, Width E, Rows S and Out T.
type FeatureSizes struct{ Tokens, Width, Rows, Out int }

// FeaturesIn returns the sizes of the projector in set; ok is false if set holds none.
func FeaturesIn(set *weights.Set) (s FeatureSizes, ok bool) {
	set = set.Prefix(featurePrefix)
	const tokens, rows = "mid_embedding_linear.0.weight", "mid_projection.weight"
	return FeatureSizes{
		Tokens: set.Dim(tokens, 1), Width: set.Dim(rows, 1), Rows: set.Dim(tokens, 0), Out: set.Dim(rows, 0),
	}, set.Has("mid_layer_norm.bias")
}

// OpenFeatures loads the projector in set. The caller must close the result.
func OpenFeatures(ops engine.Ops, set *weights.Set) (*Features, error) {
	s, _ := FeaturesIn(set)
	m := &Features{}
	return m, m.load(ops, set.Prefix(featurePrefix), weights.Options{
		Model: "feature projector", Dims: map[string]int{"L": s.Tokens, "E": s.Width, "S": s.Rows, "T": s.Out},
	})
}

// Project turns the states [3, L, E] of the layers that Deep lists into rows [3*S, T], the rows of the last layer
// first. It returns an error if the number of states does not fit, and errors of the device.
func (m *Features) Project(env Env, states []float32) ([]float32, error) {
	levels := []*feature{&m.weights.Low, &m.weights.Mid, &m.weights.High}
	l, e, s, t := levels[0].Tokens.K(), levels[0].Rows.K(), levels[0].Tokens.N(), levels[0].Rows.N()
	if len(states) != 3*l*e {
		return nil, fmt.Errorf("feature projector: %d values, want three layers of [%d, %d]", len(states), l, e)
	}
	memory := func(a *engine.Arena) [5]engine.Tensor {
		of := func(rows, cols int) engine.Tensor { return a.Alloc(env.DType, rows, cols) }
		return [5]engine.Tensor{of(l, e), of(e, l), of(e, s), of(s, e), of(3*s, t)}
	}
	env, free, err := env.holding("feature projector", func(a *engine.Arena) { memory(a) })
	if err != nil {
		return nil, err
	}
	defer free()
	x := memory(env.Arena)
	for i, f := range levels {
		at := (len(levels) - 1 - i) * s
		env.Ops.Upload(x[0], states[i*l*e:(i+1)*l*e])
		env.Ops.Copy(x[1], x[0].Transpose(0, 1))
		env.Ops.Linear(x[2], x[1], f.Tokens, engine.Epilogue{Act: engine.SiLU})
		env.Ops.Copy(x[3], x[2].Transpose(0, 1))
		env.Ops.LayerNorm(x[3], x[3], f.Norm.Weight, f.Norm.Bias, featureEps)
		env.Ops.Linear(x[4].Slice(0, at, at+s), x[3], f.Rows, engine.Epilogue{})
	}
	v := make([]float32, 3*s*t)
	return v, env.Ops.Download(v, x[4]).Wait()
}
