package top

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"

	"patchbay/cli/console"
	"patchbay/ipc/message"
)

// topModel is the live view: it polls the daemons and shows the latest snapshot.
type topModel struct {
	ask         func() (snapshot, error)
	every       time.Duration
	now, before snapshot
	err         error // of the last poll; the last good snapshot stays on the screen
	wide, high  int
}

// pollResult is the result of a poll, tick the signal for the next one.
type (
	pollResult struct {
		snapshot snapshot
		err      error
	}
	tick struct{}
)

func (m topModel) Init() tea.Cmd { return m.fetch }

func (m topModel) fetch() tea.Msg {
	s, err := m.ask()
	return pollResult{s, err}
}

func (m topModel) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.KeyPressMsg:
		switch msg.String() {
		case "q", "esc", "ctrl+c":
			return m, tea.Quit
		}
	case tea.WindowSizeMsg:
		m.wide, m.high = msg.Width, msg.Height
	case pollResult:
		if m.err = msg.err; m.err == nil {
			m.before, m.now = m.now, msg.snapshot
		}
		return m, tea.Tick(m.every, func(time.Time) tea.Msg { return tick{} })
	case tick:
		return m, m.fetch
	}
	return m, nil
}

func (m topModel) View() tea.View {
	v := tea.NewView(m.screen())
	v.AltScreen = true
	return v
}

// screen is the text of the view.
func (m topModel) screen() string {
	if m.now.at.IsZero() && m.err == nil {
		return "asking ...\n"
	}
	style := topStyles{head: lipgloss.NewStyle().Bold(true), fault: lipgloss.NewStyle().Foreground(lipgloss.Color("9"))}
	text := ""
	if !m.now.at.IsZero() {
		text = m.now.text(&m.before, style)
	}
	if m.err != nil {
		text += style.fault.Render(m.err.Error()) + "\n"
	}
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if m.high > 0 && len(lines) > m.high-1 {
		lines = lines[:m.high-1]
	}
	for i := range lines {
		if m.wide > 0 {
			lines[i] = lipgloss.NewStyle().MaxWidth(m.wide).Render(lines[i])
		}
	}
	return strings.Join(append(lines, "q ends"), "\n")
}

// storeOf formats how much of a job store is used, and of how much if the limit is known.
func storeOf(s *message.StoreStats) string {
	if s.Limit == 0 {
		return fmt.Sprintf("%d MB", s.Bytes>>20)
	}
	return fmt.Sprintf("%d of %d MB", s.Bytes>>20, s.Limit>>20)
}

// topStyles are the styles of lines on a terminal; the zero value leaves lines as they are.
type topStyles struct{ head, fault lipgloss.Style }

// text renders a snapshot as aligned tables. Byte rates need an earlier snapshot.
func (s snapshot) text(before *snapshot, style topStyles) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	row := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format+"\n", args...) }
	row("DAEMON\tUP\tQUEUED\tRUNNING\tDONE\tFAILED\tSTEPS/S\tSTEPS\tCACHE\tREFUSED")
	for _, d := range s.Daemons {
		row("%s\t%s\t%d\t%d\t%d\t%d\t%.1f\t%d\t%s\t%d", d.Daemon, since(s.at, d.Since), d.Queued, d.Running,
			d.Ended[message.Done], d.Ended[message.Failed],
			d.Rate, d.Steps, share(d.CacheHits, d.CacheHits+d.CacheMisses), total(d.Refused))
	}
	for _, d := range s.Daemons {
		if d.Paused {
			row("")
			row("%s is paused: waiting jobs stay where they are", d.Daemon)
		}
		if st := d.Store; st != nil && (st.Full || st.Lost > 0 || st.Bytes > 0) {
			row("")
			row("job store of %s: %s%s%s%s%s", d.Daemon, storeOf(st),
				map[bool]string{true: fmt.Sprintf(", %d copies", st.Copies)}[st.Copies > 1],
				map[bool]string{true: ", full: no new jobs"}[st.Full],
				map[bool]string{true: fmt.Sprintf(", %d records lost", st.Lost)}[st.Lost > 0],
				map[bool]string{true: fmt.Sprintf(", %d written again", st.Restored)}[st.Restored > 0])
			for _, text := range st.Trouble {
				row("  %s", text)
			}
		}
	}
	row("")
	row("WORKER\tPID\tRESTARTS\tJOB\tSTEP\tSTEPS/S")
	for _, d := range s.Daemons {
		for _, k := range d.Workers {
			name, pid := k.Name, fmt.Sprint(k.PID)
			if len(s.Daemons) > 1 {
				name = d.Daemon + "/" + name
			}
			if k.PID == 0 {
				pid = "starting"
			}
			row("%s\t%s\t%d\t%s\t%s\t%s", name, pid, k.Restarts, console.OrDash(k.Job), stepOf(k), rateOf(k))
		}
	}
	row("")
	row("AXIS\tBYTES\tBYTES/S")
	sent := s.axes()
	for _, axis := range slices.Sorted(maps.Keys(sent)) {
		row("%s\t%s\t%s", axis, console.Size(float64(sent[axis])), s.flow(axis, before))
	}
	row("")
	row("JOB\tSTATE\tATTEMPT\tAGE\tTOOK\tABOUT")
	for _, r := range s.order() {
		row("%s\t%s\t%d\t%s\t%s\t%s", r.Job, r.State, r.Attempt, console.Age(r.Created), console.OrDash(console.Took(r)),
			cmp.Or(console.FailureOf(r), r.About))
	}
	_ = w.Flush()
	var out strings.Builder
	for line := range strings.Lines(b.String()) {
		line = strings.TrimRight(line, " \n")
		switch first, _, _ := strings.Cut(line, " "); first {
		case "DAEMON", "WORKER", "AXIS", "JOB":
			line = style.head.Render(line)
		}
		out.WriteString(line + "\n")
	}
	return out.String()
}

// order puts running jobs first, then waiting ones, then the others, newest first.
func (s snapshot) order() []message.Record {
	class := func(r message.Record) int {
		return slices.Index([]message.State{message.Running, message.Queued}, r.State) & 3
	} // others: -1 & 3 = 3
	out := slices.Clone(s.Jobs)
	slices.SortStableFunc(out, func(a, b message.Record) int { return cmp.Compare(class(a), class(b)) })
	return out
}

// axes sums the bytes per axis over all daemons.
func (s snapshot) axes() map[string]uint64 {
	out := map[string]uint64{}
	for _, d := range s.Daemons {
		for axis, n := range d.Axes {
			out[axis] += n
		}
	}
	return out
}

// flow formats the bytes per second that went over an axis since the previous snapshot.
func (s snapshot) flow(axis string, before *snapshot) string {
	if before == nil || before.at.IsZero() {
		return "-"
	}
	more := float64(s.axes()[axis]) - float64(before.axes()[axis])
	if more < 0 { // a daemon has restarted
		return "-"
	}
	return console.Size(more / s.at.Sub(before.at).Seconds())
}

func since(now time.Time, ms int64) string {
	return console.Duration(now.Sub(time.UnixMilli(ms)))
}

func share(part, all uint64) string {
	if all == 0 {
		return "-"
	}
	return fmt.Sprintf("%d%%", 100*part/all)
}

func total(counts map[string]uint64) (n uint64) {
	for _, v := range counts {
		n += v
	}
	return n
}

func stepOf(w message.WorkerStats) string {
	if w.Steps == 0 {
		return "-"
	}
	return fmt.Sprintf("%d/%d", w.Step, w.Steps)
}

func rateOf(w message.WorkerStats) string {
	if w.Rate == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f", w.Rate)
}
