package parallel

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"patchbay/fault"
	"patchbay/models/sampling"
	"patchbay/parallel/request"
	"patchbay/parallel/resume"
)

// resumeFrame is what a log has in front of the numbers of an evaluation, resumeHead what the file begins with.
const resumeFrame, resumeHead = 16, 40

// logged is a run that wrote a log: its result, and the contents of the log by evaluation.
type logged struct {
	req    *request.Request
	result *request.Result
	steps  []int // as reported
	name   string
	head   []byte
	of     [][]byte
}

// sampleLogged runs a request with a log in a folder of its own, whose file contents may be given.
func sampleLogged(
	t *testing.T, e *Pool, r *request.Request, name string, contents []byte,
) (logged, []request.Progress) {
	t.Helper()
	dir := t.TempDir()
	again := *r
	again.Resume = &resume.Folder{Root: dir, Name: "job", Most: 1 << 30, Dropped: func(err error) { t.Error(err) }}
	if name != "" {
		if err := os.Mkdir(filepath.Join(dir, "job"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "job", name), contents, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var reports []request.Progress
	result, err := e.Sample(context.Background(), &again, func(p request.Progress) error {
		reports = append(reports, p)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	out := logged{req: r, result: result}
	files, err := os.ReadDir(filepath.Join(dir, "job"))
	if err != nil || len(files) != 1 {
		t.Fatalf("%d logs, %v; want one", len(files), err)
	}
	out.name = files[0].Name()
	text, err := os.ReadFile(filepath.Join(dir, "job", out.name))
	if err != nil {
		t.Fatal(err)
	}
	out.head, text = text[:resumeHead], text[resumeHead:]
	for len(text) > 0 {
		n := resumeFrame + int(text[0]) + int(text[1])<<8 + int(text[2])<<16
		out.of, text = append(out.of, text[:n]), text[n:]
	}
	for _, p := range reports {
		out.steps = append(out.steps, p.Step)
	}
	return out, reports
}

// computed returns how many evaluations the rank ran that ran most.
func computed(r *request.Result) int {
	n := int64(0)
	for _, c := range r.Stats.Tokens {
		n = max(n, c.MicroSteps)
	}
	return int(n)
}

// resumed runs the request again as after the death of a worker that had logged so many evaluations, and a part of the
// next one. It checks what must hold for every plan.
func (l *logged) resumed(t *testing.T, e *Pool, evaluations int) *request.Result {
	t.Helper()
	contents := slices.Concat(append([][]byte{l.head}, l.of[:evaluations]...)...)
	if evaluations < len(l.of) {
		next := l.of[evaluations]
		contents = append(contents, next[:len(next)-1-evaluations%len(next)]...)
	}
	got, reports := sampleLogged(t, e, l.req, l.name, contents)
	st := got.result.Stats
	if st.Resumed != evaluations || st.Evaluations != len(l.of)-evaluations {
		t.Errorf("%d of %d evaluations in the log: %d resumed, %d ran", evaluations, len(l.of), st.Resumed, st.Evaluations)
	}
	silent := len(l.steps) - len(got.steps)
	if silent < 0 || !slices.Equal(got.steps, l.steps[max(silent, 0):]) {
		t.Errorf("%d evaluations in the log: steps %v are reported, of %v", evaluations, got.steps, l.steps)
	}
	for i, p := range reports {
		if p.Resumed != (i == 0 && reports[0].Resumed) || !reports[0].Resumed && silent > 0 {
			t.Errorf("%d evaluations in the log: report %d is of step %d, resumed %v", evaluations, i, p.Step, p.Resumed)
		}
	}
	each := len(l.of) == len(l.steps) && evaluations > 0 // of these is a step
	if each && len(st.Reused) == 0 && (silent != evaluations-1 || !reports[0].Resumed) {
		t.Errorf("%d evaluations in the log, each a step: steps %v are reported", evaluations, got.steps)
	}
	if len(got.of) != len(l.of) || !slices.Equal(got.head, l.head) {
		t.Errorf("%d evaluations in the log, in the end %d, want %d", evaluations, len(got.of), len(l.of))
	}
	for i := range evaluations {
		if !slices.Equal(got.of[i], l.of[i]) {
			t.Errorf("%d evaluations in the log: number %d has changed", evaluations, i)
		}
	}
	return got.result
}

// resumeSamplers have one and several evaluations a step, noise of their own, memory of earlier steps, and an end that
// depends on what they see.
var resumeSamplers = []string{
	"euler", "dpmpp_2m", "heun", "euler_ancestral", "dpmpp_2m_sde", "dpm_2_ancestral", "uni_pc", "dpm_adaptive", "lcm",
}

// TestResumeExactPlans kills runs of exact plans after every evaluation (up to 20) and in the middle of the next: what
// runs then has the bits of a run that was left alone, and computes only what the log lacks.
func TestResumeExactPlans(t *testing.T) {
	e := newEngine(t)
	g := openGolden(t, anyModel)
	runs := 0
	for i, sampler := range resumeSamplers {
		plans := []string{"", "ulysses=2,cfg=2", "pipe=2,patches=3,warmup=1000", "pipe=2,patches=2,deterministic=on"}
		if testing.Short() { // the long form runs all
			plans = plans[i%len(plans) : i%len(plans)+1]
		}
		for _, plan := range plans {
			r := parityRequest(t, g, anyModel, 1, 5, 6, 4)
			r.Sampler, r.Plan = sampler, plan
			if plan != "" { // one entry a branch, for pipelines
				for _, b := range r.Branches {
					b.Entries = b.Entries[:1]
				}
			}
			quiet, err := e.Sample(context.Background(), r, nil)
			if err != nil {
				t.Fatal(err)
			}
			full, _ := sampleLogged(t, e, r, "", nil)
			sameBits(t, "with a log", full.result, quiet)
			if n := computed(full.result); len(full.of) != quiet.Stats.Evaluations || n%len(full.of) != 0 {
				t.Fatalf("%s %q: %d evaluations in the log, %d ran", sampler, plan, len(full.of), quiet.Stats.Evaluations)
			}
			every := 1 + len(full.of)/20
			if testing.Short() {
				every += len(full.of) / 3
			}
			for n := 0; n <= len(full.of); n += every {
				got := full.resumed(t, e, n)
				sameBits(t, sampler+" "+plan, got, quiet)
				if want := computed(full.result) / len(full.of) * (len(full.of) - n); computed(got) != want {
					t.Errorf("%s %q from %d of %d: %d evaluations were computed, want %d", sampler, plan, n, len(full.of),
						computed(got), want)
				}
				runs++
			}
			if t.Failed() {
				t.Fatalf("%s %q", sampler, plan)
			}
		}
	}
	t.Logf("%d resumed runs, all of the same bits", runs)
}

func sameBits(t *testing.T, what string, got, want *request.Result) {
	t.Helper()
	if !slices.Equal(got.Latent.Data, want.Latent.Data) || !slices.Equal(got.X0.Data, want.X0.Data) {
		t.Errorf("%s: the relative difference to a run that was left alone is %.3g, want the same bits", what,
			relative(got.Latent.Data, want.Latent.Data))
	}
}

// TestResumeWithStepCaches checks that a step cache decides after a death as it would have: it learns from the log too.
func TestResumeWithStepCaches(t *testing.T) {
	e := newEngine(t)
	for _, rule := range []request.CacheRule{request.CacheEasy, request.CacheLazy} {
		for _, plan := range []string{"", "pipe=2,patches=3,warmup=99"} {
			r := cachedRequest(t, anyModel, rule, 8)
			r.Plan = plan
			if plan != "" {
				for _, b := range r.Branches {
					b.Entries = b.Entries[:1]
				}
			}
			full, _ := sampleLogged(t, e, r, "", nil)
			reused := full.result.Stats.Reused
			if len(reused) == 0 {
				t.Fatalf("rule %d: nothing is reused, so that nothing is tested", rule)
			}
			for n := range len(full.of) + 1 {
				got := full.resumed(t, e, n)
				sameBits(t, plan, got, full.result)
				if !slices.Equal(got.Stats.Reused, reused) || len(got.Stats.Changes) != len(full.result.Stats.Changes) {
					t.Errorf("rule %d from %d: reused %v, want %v", rule, n, got.Stats.Reused, reused)
				}
			}
		}
	}
}

// TestResumeStalePipelines checks that the first evaluation after a log is synchronous, because the ranks have lost the
// keys and values that the others would read, and that the result stays about as close to one rank's.
func TestResumeStalePipelines(t *testing.T) {
	e := newEngine(t)
	for _, family := range []string{"flux", "pixart"} {
		r := flatRequest(t, family, 6)
		exact, err := e.Sample(context.Background(), r, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, plan := range []string{"pipe=2,patches=3", "pipe=2,patches=3,warmup=3"} {
			r.Plan = plan
			full, _ := sampleLogged(t, e, r, "", nil)
			bound := relative(full.result.Latent.Data, exact.Latent.Data)
			first := full.result.Stats.Synchronous
			for n := range len(full.of) + 1 {
				got := full.resumed(t, e, n)
				var want []int
				for i := n; i < len(full.of); i++ {
					if i == n || slices.Contains(first, i) {
						want = append(want, i)
					}
				}
				if !slices.Equal(got.Stats.Synchronous, want) {
					t.Errorf("%s %s from %d: synchronous are %v, want %v", family, plan, n, got.Stats.Synchronous, want)
				}
				away := relative(got.Latent.Data, exact.Latent.Data)
				if !(away <= 1.5*bound) {
					t.Errorf("%s %s from %d: %.3g from one rank, %.3g without a death", family, plan, n, away, bound)
				}
				if n == 0 || n == len(full.of) {
					sameBits(t, plan, got, full.result)
				}
			}
		}
	}
}

// TestResumeAfterError checks that a run that ended with an error leaves a log, which one with another seed, plan or
// build does not take for its own.
func TestResumeAfterError(t *testing.T) {
	e := newEngine(t)
	r := parityRequest(t, openGolden(t, anyModel), anyModel, 1, 5, 6, 6)
	r.Resume = &resume.Folder{Root: t.TempDir(), Name: "job", Most: 1 << 30, Dropped: func(err error) { t.Error(err) }}
	cut := errors.New("enough")
	stopAt := func(step int) request.Observe {
		return func(p request.Progress) error {
			if p.Step == step {
				return cut
			}
			return nil
		}
	}
	if _, err := e.Sample(context.Background(), r, stopAt(3)); !errors.Is(err, cut) {
		t.Fatal(err)
	}
	seed, plan, build, folder := *r, *r, *r, *r.Resume
	seed.Seed++
	plan.Plan, folder.Build, build.Resume = "ulysses=2", "another", &folder
	for _, c := range []struct {
		what string
		r    *request.Request
		want int
	}{{"another seed", &seed, 0}, {"another plan", &plan, 0}, {"another build", &build, 0}, {"", r, 3}, {"", r, 6}} {
		got, err := e.Sample(context.Background(), c.r, nil)
		if err != nil || got.Stats.Resumed != c.want {
			t.Errorf("%s: %d evaluations were resumed (%v), want %d", c.what, got.Stats.Resumed, err, c.want)
		}
	}
}

// TestResumeAfterLostRank kills the process of a rank twice in a run: others go on from the log, with the same bits and
// without the caller. Without a log that gets further the run ends.
func TestResumeAfterLostRank(t *testing.T) {
	p := &processes{dir: t.TempDir(), silence: 2 * time.Second}
	e, err := NewPool(Config{NewOps: testOps, Processes: p})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	r := benchRequest(t, 192, 16)
	r.Plan = "ulysses=2"
	r.Model.Weights = named{r.Model.Weights, "192"}
	if r.Sigmas, err = sampling.MakeSigmas(r.Sampling, "simple", 10); err != nil {
		t.Fatal(err)
	}
	want, err := e.Sample(t.Context(), r, nil)
	if err != nil {
		t.Fatal(err)
	}
	var dropped []error
	r.Resume = &resume.Folder{
		Root: t.TempDir(), Name: "job", Most: 1 << 30, Dropped: func(err error) { dropped = append(dropped, err) },
	}
	var resumed []int
	kills := map[int]bool{3: true, 7: true}
	got, err := e.Sample(t.Context(), r, func(at request.Progress) error {
		if at.Resumed {
			resumed = append(resumed, at.Step)
		} else if kills[at.Step] {
			_ = syscall.Kill(p.pids[1], syscall.SIGKILL)
		}
		return nil
	})
	if err != nil || len(dropped) > 0 {
		t.Fatal(err, dropped)
	}
	sameBits(t, "after two lost ranks", got, want)
	lost := got.Stats.Lost
	if len(resumed) != 2 || resumed[0] < 3 || resumed[1] < 7 || len(lost) != 2 ||
		!strings.Contains(lost[0], "process 1 has gone: signal: killed") || got.Stats.Resumed != resumed[1] {
		t.Errorf("resumed at steps %v (%d evaluations) after %q; want two losses that name the process", resumed,
			got.Stats.Resumed, lost)
	}
	r.Resume.Most = 1 // nothing is kept
	r.Seed++
	_, err = e.Sample(t.Context(), r, func(at request.Progress) error {
		if at.Step == 3 {
			_ = syscall.Kill(p.pids[1], syscall.SIGKILL)
		}
		return nil
	})
	var f *fault.Error
	if !errors.As(err, &f) || f.Code != fault.HostLost {
		t.Errorf("got %v, want the loss", err)
	}
}
