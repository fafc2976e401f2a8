package serve

import "sync"

// openRequests counts the requests of a carrier whose last reply has not been sent. Unlike with a WaitGroup,
// new ones may begin while somebody waits.
type openRequests struct {
	mu   sync.Mutex
	n    int
	zero chan struct{} // closed, and nil again, when n falls to 0
}

// begin counts a request.
func (o *openRequests) begin() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.n++
}

// end counts a request whose last reply is sent.
func (o *openRequests) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.n--; o.n == 0 && o.zero != nil {
		close(o.zero)
		o.zero = nil
	}
}

// idle returns a channel that is closed as soon as no request is open. It must be called only once.
func (o *openRequests) idle() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	idle := make(chan struct{})
	if o.n == 0 {
		close(idle)
	} else {
		o.zero = idle
	}
	return idle
}
