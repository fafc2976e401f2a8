package top

import (
	"errors"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"

	"patchbay/fault"
	"patchbay/ipc/message"
)

// snapshots returns two snapshots of two daemons, two seconds apart.
func snapshots() []snapshot {
	at := time.UnixMilli(1_000_000)
	out := make([]snapshot, 2)
	for i := range out {
		out[i] = snapshot{at: at.Add(time.Duration(2*i) * time.Second), Daemons: []message.Stats{
			{
				Daemon: "d-a", Since: 940_000, Queued: 3, Running: 1, Rate: 12.5, Steps: 90,
				Ended: map[message.State]uint64{message.Done: 7, message.Failed: 2},
				Axes:  map[string]uint64{"ulysses": uint64(1<<20 + i*4096)}, CacheHits: 1, CacheMisses: 3,
				Refused: map[string]uint64{"queue_full": 4, "bad_workflow": 1},
				Workers: []message.WorkerStats{{
					Name: "worker-0", PID: 77, Restarts: 1, Job: "j-run", Step: 3 + i, Steps: 20,
					Rate: 12.5,
				}, {Name: "worker-1"}},
			},
			{
				Daemon: "d-b", Since: 999_000, Axes: map[string]uint64{"ulysses": 1 << 20},
				Workers: []message.WorkerStats{{Name: "worker-0", PID: 78}},
			},
		}, Jobs: []message.Record{
			{Job: "j-done", State: message.Done, Attempt: 1, Created: 2, Started: 10, Finished: 1510},
			{Job: "j-wait", State: message.Queued},
			{Job: "j-run", State: message.Running, Attempt: 2},
			{Job: "j-bad", State: message.Failed, Error: fault.New(fault.Deadline, "too slow")},
		}}
	}
	return out
}

// has reports whether a line of text consists of these cells.
func has(text, cells string) bool {
	want := strings.Fields(cells)
	for line := range strings.Lines(text) {
		if got := strings.Fields(line); strings.Join(got, " ") == strings.Join(want, " ") {
			return true
		}
	}
	return false
}

func TestTopModel(t *testing.T) {
	looks := snapshots()
	asked := 0
	m := tea.Model(topModel{every: time.Millisecond, ask: func() (snapshot, error) {
		asked++
		if asked > len(looks) {
			return snapshot{}, errors.New("no daemon answers")
		}
		return looks[asked-1], nil
	}})
	if !strings.Contains(m.View().Content, "asking") {
		t.Errorf("before the first answer it shows %q", m.View().Content)
	}
	cmd := m.Init()
	turn := func() { // a request, its answer, and the wait for the next
		t.Helper()
		m, cmd = m.Update(cmd())
		if _, ok := cmd().(tick); !ok {
			t.Fatal("after an answer it does not wait")
		}
		m, cmd = m.Update(tick{})
	}
	turn()
	for _, line := range []string{
		"d-a 1m00s 3 1 7 2 12.5 90 25% 5", "d-b 1.0s 0 0 0 0 0.0 0 - 0",
		"d-a/worker-0 77 1 j-run 3/20 12.5", "d-a/worker-1 starting 0 - - -", "d-b/worker-0 78 0 - - -", "ulysses 2 MiB -",
	} {
		if !has(m.View().Content, line) {
			t.Errorf("no line %q in\n%s", line, m.View().Content)
		}
	}
	turn()
	// 4096 bytes in 2 s
	if !has(m.View().Content, "ulysses 2.004 MiB 2 KiB") || !has(m.View().Content, "d-a/worker-0 77 1 j-run 4/20 12.5") {
		t.Errorf("the second look shows\n%s", m.View().Content)
	}
	view := m.View().Content
	for _, pair := range [][2]string{{"j-run  ", "j-wait"}, {"j-wait", "j-done"}, {"j-done", "j-bad"}} {
		if a, b := strings.LastIndex(view, pair[0]), strings.Index(view, pair[1]); a < 0 || b < a {
			t.Errorf("%s is not above %s in\n%s", pair[0], pair[1], view)
		}
	}
	if !strings.Contains(view, "1.5s") || !strings.Contains(view, "deadline: too slow") {
		t.Errorf("time and error are missing in\n%s", view)
	}
	turn() // the daemon is gone: the view says so and keeps what was known
	if !strings.Contains(m.View().Content, "no daemon answers") || !strings.Contains(m.View().Content, "j-done") {
		t.Errorf("without an answer it shows\n%s", m.View().Content)
	}
	m, _ = m.Update(tea.WindowSizeMsg{Width: 20, Height: 6})
	lines := strings.Split(m.View().Content, "\n")
	if len(lines) != 6 || lines[5] != "q ends" {
		t.Errorf("%d lines on a screen of 6: %q", len(lines), lines)
	}
	for _, l := range lines {
		if lipgloss.Width(l) > 20 {
			t.Errorf("line %q is wider than the screen", l)
		}
	}
	for _, key := range []tea.KeyPressMsg{{Code: 'q', Text: "q"}, {Code: 'c', Mod: tea.ModCtrl}, {Code: tea.KeyEscape}} {
		_, cmd := m.Update(key)
		if cmd == nil {
			t.Fatalf("%s does nothing", key)
		}
		if _, ok := cmd().(tea.QuitMsg); !ok {
			t.Errorf("%s does not end it", key)
		}
	}
	if _, cmd := m.Update(tea.KeyPressMsg{Code: 'x', Text: "x"}); cmd != nil {
		t.Error("x does something")
	}
}
