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
		return &dit.Shared{Model: m, Free: func() {}}, err // other engines read it
	}
}
