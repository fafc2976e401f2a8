//go:build cgo

package driver

import (
	"errors"
	"sync"
)

// freeList holds what streams have returned to their device. It is safe for concurrent use.
type freeList[T any] struct {
	mu   sync.Mutex
	idle []T
}

// take returns an idle one, or a new one from made if there is none.
func (p *freeList[T]) take(made func() (T, error)) (T, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.idle)
	if n == 0 {
		return made()
	}
	last := p.idle[n-1]
	p.idle = p.idle[:n-1]
	return last, nil
}

func (p *freeList[T]) put(v T) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle = append(p.idle, v)
}

// free frees all idle ones by calling one.
func (p *freeList[T]) free(one func(T) error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, v := range p.idle {
		errs = append(errs, one(v))
	}
	p.idle = nil
	return errors.Join(errs...)
}
