package parallel

import (
	"reflect"
	"sync"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/parallel/plan"
)

// packed are the weights of small models as the processors read them, by plan.HeldKey: hundreds of engines of the tests
// run the same few models, and packing them takes as long as many a run. They stay until the tests end.
var packed sync.Map

// kept is a model that is not freed, as other engines read it.
type kept struct{ dit.Model }

func (kept) Close() {}

// keptNet, keptFollower and keptPatch are that of control nets and model patches.
type (
	keptNet      struct{ dit.Control }
	keptFollower struct{ dit.Follower }
	keptPatch    struct{ dit.Patch }
)

func (keptNet) Close()      {}
func (keptFollower) Close() {}
func (keptPatch) Close()    {}

// keeping wraps a model in the interface that ranks ask of it.
func keeping(m dit.Model) dit.Model {
	switch m := m.(type) {
	case dit.Follower:
		return keptFollower{m}
	case dit.Control:
		return keptNet{m}
	case dit.Patch:
		return keptPatch{m}
	}
	return kept{m}
}

// packedOnce loads the parts of a model once for all engines that compute with plain testOps. Other operations, which
// count, delay or move memory, and models whose parts are brought together get weights of their own.
func packedOnce(name string, load LoadFunc) LoadFunc {
	return func(ops engine.Ops, held dit.Held) (dit.Model, error) {
		own, err := testOps(0, 1)
		if err != nil || held.Parts > 1 || reflect.TypeOf(ops) != reflect.TypeOf(own) {
			return load(ops, held)
		}
		made, _ := packed.LoadOrStore(plan.HeldKey(name, held), sync.OnceValues(func() (dit.Model, error) {
			return load(own, held)
		}))
		m, err := made.(func() (dit.Model, error))()
		return keeping(m), err
	}
}
