package resample

import (
	"runtime"
	"sync"
)

// grain is the number of multiply-adds that justifies another goroutine.
const grain = 1 << 16

// split calls f for ranges that cover [0, n) exactly once, on up to GOMAXPROCS goroutines. each is the multiply-adds
// per item. A panic in f is passed on by split.
func split(n, each int, f func(lo, hi int)) {
	parts := min(runtime.GOMAXPROCS(0), n, 1+n*max(each, 1)/grain)
	if parts <= 1 {
		f(0, n)
		return
	}
	var wait sync.WaitGroup
	failures := make([]any, parts)
	for i := range parts {
		wait.Go(func() {
			defer func() { failures[i] = recover() }()
			f(n*i/parts, n*(i+1)/parts)
		})
	}
	wait.Wait()
	for _, failure := range failures {
		if failure != nil {
			panic(failure)
		}
	}
}
