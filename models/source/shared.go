package source

import (
	"strings"
	"sync"
)

// closer is something with memory to give back.
type closer interface{ Close() }

// Shared keeps loaded weights that several use at the same time: the plain model and the same with adapters. Whoever
// takes a value gives it back once; the last one frees it. The zero value is empty. Safe for concurrent use.
type Shared struct {
	mu   sync.Mutex
	held map[string]*sharedItem
}

type sharedItem struct {
	value closer
	users int
}

// Take returns the value of key, loading it if nobody has it, and the function that gives it back (a second call of
// that does nothing).
func Take[T closer](s *Shared, key string, load func() (T, error)) (T, func(), error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	it := s.held[key]
	if it == nil {
		v, err := load()
		if err != nil {
			return v, nil, err
		}
		it = &sharedItem{value: v}
		if s.held == nil {
			s.held = map[string]*sharedItem{}
		}
		s.held[key] = it
	}
	it.users++
	return it.value.(T), s.giveBack(key, it), nil
}

// pin takes everything whose key begins with prefix, so that it stays loaded until the returned function is called.
func (s *Shared) pin(prefix string) func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []func()
	for key, it := range s.held {
		if strings.HasPrefix(key, prefix) {
			it.users++
			all = append(all, s.giveBack(key, it))
		}
	}
	return func() {
		for _, f := range all {
			f()
		}
	}
}

// giveBack returns the function that ends one use of it.
func (s *Shared) giveBack(key string, it *sharedItem) func() {
	return sync.OnceFunc(func() {
		s.mu.Lock()
		it.users--
		last := it.users == 0
		if last {
			delete(s.held, key)
		}
		s.mu.Unlock()
		if last {
			it.value.Close()
		}
	})
}
