package plan

import (
	"strings"
	"testing"
)

// TestIdleDevicesHaveAReason checks that where a device stays idle, because the network costs more than it gains or
// because it is slow, the answer names the plan that would use it, the difference and the cause.
func TestIdleDevicesHaveAReason(t *testing.T) {
	for _, c := range []struct{ flags, plan string }{
		{"--model pixart-alpha --size 288x288 --steps 4 --entries 1 --exact --devices 2x1xH100+ethernet100", "=2"},
		{"--model flux-dev --steps 28 --exact --devices H100-pcie,L40", "speeds=100:"},
	} {
		got, err := answer(t, strings.Fields(c.flags)...)
		if err != nil {
			t.Fatal(err)
		}
		why := got.IdleReason
		if got.Idle != 1 || !strings.Contains(why, c.plan) || !strings.Contains(why, "%: ") ||
			!strings.Contains(why, " against ") {
			t.Errorf("%s: %d idle, %q: want one, and a plan with %s, a difference and a cause", c.flags, got.Idle, why, c.plan)
		}
	}
}
