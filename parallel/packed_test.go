package parallel

import (
	"reflect"
	"sync"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/parallel/plan"
	"patchbay/parallel/request"
)

// packed holds the packed weights of small models by plan.HeldKey: hundreds of engines of the tests run the same few
// models, and packing takes as long as many runs. They stay until the tests end.
var packed sync.Map

// packedOnce loads the parts of a model once for all engines that compute with plain testOps. Ops that count, delay or
// move memory, and models that are not whole, get weights of their own.
func packedOnce(name string, load request.LoadFunc) request.LoadFunc {
	return func(ops engine.Ops, held dit.Held) (dit.Model, error) {
		plain, err := testOps(0, 1)
		bare, _ := dit.ShelfOf(ops)
		if err != nil || held.Parts > 1 || held.Stream > 0 || reflect.TypeOf(bare) != reflect.TypeOf(plain) {
			return load(ops, held)
		}
		made, _ := packed.LoadOrStore(plan.HeldKey(name, held), sync.OnceValues(func() (dit.Model, error) {
			return load(plain, held)
		}))
		m, err := made.(func() (dit.Model, error))()
		return &dit.Shared{Model: m, Free: func() {}}, err // other engines read it
	}
}
