package goldenrun

import (
	"testing"

	"patchbay/engine"
	"patchbay/models/dit"
)

// cutModel computes every splittable block in two halves.
type cutModel struct {
	dit.Model
	cut int
}

func (m *cutModel) Block(env dit.Env, i int, s *dit.State, skip engine.Tensor) {
	if !m.Spec().Blocks[i].Splittable {
		m.Model.Block(env, i, s, skip)
		return
	}
	m.cut++
	env.Half = dit.AttentionHalf
	m.Model.Block(env, i, s, skip)
	env.Half, env.Attend = dit.MLPHalf, func(dit.Attention) { panic("the MLP half attends") }
	m.Model.Block(env, i, s, skip)
}

// Cut computes blocks in halves and checks that the bits are those of whole blocks and the second half does not attend.
func (f Family) Cut(t *testing.T) {
	f = f.brief(t)
	models := map[string]dit.Model{}
	for _, name := range f.Models {
		models[name] = f.load(t, NewOps(), name, dit.Held{})
	}
	f.some(t, func(t *testing.T, name string, c Case) {
		want := mustWhole(t, NewOps(), models[name], c, nil)
		halves := &cutModel{Model: models[name]}
		if _, err := Compare(mustWhole(t, NewOps(), halves, c, nil), want, 0); err != nil {
			t.Fatalf("halves against whole blocks: %v", err)
		}
		if halves.cut == 0 {
			t.Errorf("%s has no block that can be cut", name)
		}
	})
}
