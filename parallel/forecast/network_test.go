package forecast

import "testing"

// TestFullLinksMakeTheirSenderWait checks that a channel of n slots accepts a message only once the receiver has taken
// the one n places before, with three messages of a fast sender to a receiver that works 10 s on each.
func TestFullLinksMakeTheirSenderWait(t *testing.T) {
	for slots, want := range map[int]float64{0: 20, 1: 10, 2: 0, 3: 0, unbounded: 0} {
		n := &network{actors: []actor{{name: "from"}, {name: "to"}}, channels: []channel{{from: 0, to: 1, slots: slots}}}
		for range 3 {
			n.actors[0].actions = append(n.actors[0].actions, action{kind: Sending})
			n.actors[1].actions = append(n.actors[1].actions, action{kind: Receiving}, action{kind: Working, seconds: 10})
		}
		ends, _, err := n.run(true)
		if err != nil {
			t.Fatal(err)
		}
		if !near(ends[0], want, 1e-9) || !near(ends[1], 30, 1e-9) {
			t.Errorf("%d slots: the sender is done after %.1f s, the receiver after %.1f s, want %.1f and 30",
				slots, ends[0], ends[1], want)
		}
	}
}
