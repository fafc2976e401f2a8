package resample

import (
	"runtime"
	"sync"
)

// grain is the work, in multiply-adds, below which another goroutine is not worth its start.
const grain = 1 << 16

// split calls f for ranges that cover [0, n) exactly once, on as many goroutines as there are processors; each costs so
// many multiply-adds an item. A panic in f comes out of split.
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
