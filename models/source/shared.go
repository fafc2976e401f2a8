package source

import (
	"strings"
	"sync"
)

// closer is something with memory to free.
type closer interface{ Close() }

// Shared keeps loaded weights that have several users at the same time, such as the plain model and the same with
// adapters. Each user releases a value once; the last one frees it. The zero value is empty. A Shared is safe for
// concurrent use. It loads one value at a time; those that it has are taken and released meanwhile.
type Shared struct {
	loading sync.Mutex // held during a load; mu is not
	mu      sync.Mutex
	held    map[string]*sharedItem
}

type sharedItem struct {
	value closer
	users int
}

// Take returns the value of key, loading it if it is not loaded yet, and the function that releases it. Further calls
// of that function do nothing.
func Take[T closer](s *Shared, key string, load func() (T, error)) (T, func(), error) {
	it := s.use(key)
	if it == nil {
		s.loading.Lock()
		defer s.loading.Unlock()
		it = s.use(key) // another user may have loaded it by now
	}
	if it == nil {
		v, err := load()
		if err != nil {
			return v, nil, err
		}
		it = &sharedItem{value: v, users: 1}
		s.mu.Lock()
		if s.held == nil {
			s.held = map[string]*sharedItem{}
		}
		s.held[key] = it
		s.mu.Unlock()
	}
	return it.value.(T), s.giveBack(key, it), nil
}

// use counts one more user of the value of key and returns it, nil if it is not loaded.
func (s *Shared) use(key string) *sharedItem {
	s.mu.Lock()
	defer s.mu.Unlock()
	it := s.held[key]
	if it != nil {
		it.users++
	}
	return it
}

// Pin takes every value whose key begins with prefix, so that it stays loaded until the returned function is called.
func (s *Shared) Pin(prefix string) func() {
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

// giveBack returns the function that ends one use of an item.
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
