package parallel

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/fault"
	"patchbay/models/dit"
	"patchbay/parallel/process"
	"patchbay/parallel/request"
)

// onClose is something that is kept, and says when it is dropped.
type onClose func()

func (f onClose) Close() { f() }

// keep makes something of that many bytes resident on the device of rank 0.
func (p *Pool) keep(t *testing.T, key string, bytes int64, dropped func()) {
	t.Helper()
	_, _, err := p.whole.home.Keep(0, process.Want{
		Key: key, Bytes: func() int64 { return bytes },
		Load: func(int64) (process.Kept, error) { return onClose(dropped), nil },
	})
	if err != nil {
		t.Error(err)
	}
}

// shares returns a pool, and a function that uses one of three things that each take 100 bytes: an encoder and an
// autoencoder, which Do keeps, and a network, which Load makes resident. log is what was loaded (+) and dropped (-).
func shares(t *testing.T, room int64) (e *Pool, use func(name string) error, log func() string) {
	t.Helper()
	e, model, _ := shelf(t, room)
	var did []string
	note := func(sign, name string) { did = append(did, sign+name) }
	network := model("network")
	inner := network.Weights
	network.Weights = request.LoadFunc(func(ops engine.Ops, held dit.Held) (dit.Model, error) {
		note("+", "network")
		m, err := inner.Load(ops, held)
		return &dit.Shared{Model: m, Free: func() { note("-", "network"); m.Close() }}, err
	})
	use = func(name string) error {
		if name == "network" {
			_, err := e.Load(t.Context(), network, "")
			return err
		}
		return e.Do(t.Context(), name, func(l *Workspace) error {
			_, _, err := l.Keep(0, process.Want{
				Key: name, Bytes: func() int64 { return 100 }, Load: func(int64) (process.Kept, error) {
					note("+", name)
					return onClose(func() { note("-", name) }), nil
				},
			})
			return err
		})
	}
	return e, use, func() string {
		out := strings.Join(did, " ")
		did = nil
		return out
	}
}

// TestOneBudget checks that an encoder, a network and an autoencoder share one budget: any two of them fit, so each use
// of the third drops the one that was used least recently and no other, and what is there is not loaded again.
func TestOneBudget(t *testing.T) {
	e, use, log := shares(t, 250)
	for i, c := range []struct{ name, want string }{
		{"encoder", "+encoder"},
		{"network", "+network"},
		{"vae", "-encoder +vae"},
		{"vae", ""},
		{"network", ""},
		{"encoder", "-vae +encoder"},
		{"network", ""},
		{"vae", "-encoder +vae"},
		{"encoder", "-network +encoder"},
	} {
		if err := use(c.name); err != nil {
			t.Fatal(err)
		}
		if got := log(); got != c.want {
			t.Errorf("use %d, of the %s: %q, want %q", i, c.name, got, c.want)
		}
	}
	if got := e.keys(); !slices.Equal(got, []string{"encoder", "vae"}) {
		t.Errorf("resident are %v, want encoder and vae", got)
	}
	if e.Evict(""); log() != "-vae -encoder" || len(e.keys()) > 0 {
		t.Errorf("%v is left", e.keys())
	}
	_, use, log = shares(t, 300) // all three
	for range 2 {
		for _, name := range []string{"encoder", "network", "vae"} {
			if err := use(name); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got := log(); got != "+encoder +network +vae" {
		t.Errorf("with room for all: %q, want each loaded once", got)
	}
}

// TestBytesComeBackAfterErrors checks that what could not be loaded, because reading failed or panicked or it did not
// fit, takes nothing of the budget, and that the last drops nothing.
func TestBytesComeBackAfterErrors(t *testing.T) {
	e, use, log := shares(t, 250)
	keep := func(bytes int64, load func() error) error {
		return e.Do(t.Context(), "work", func(l *Workspace) error {
			_, _, err := l.Keep(0, process.Want{
				Key: "broken", Bytes: func() int64 { return bytes },
				Load: func(int64) (process.Kept, error) { return nil, load() },
			})
			return err
		})
	}
	bad := errors.New("is cut short")
	if err := keep(100, func() error { return bad }); !errors.Is(err, bad) {
		t.Errorf("got %v, want the error of reading", err)
	}
	if err := keep(100, func() error { panic("trouble") }); err == nil || !strings.Contains(err.Error(), "trouble") {
		t.Errorf("got %v, want the panic", err)
	}
	if got := e.Resident(); len(got) > 0 {
		t.Errorf("after errors %v is resident, want nothing", got)
	}
	for _, name := range []string{"encoder", "network"} {
		if err := use(name); err != nil {
			t.Fatal(err)
		}
	}
	if got := log(); got != "+encoder +network" {
		t.Errorf("after errors: %q, want both loaded and none dropped", got)
	}
	err := keep(251, func() error { t.Error("it was read"); return nil })
	if !fault.Is(err, fault.OutOfMemory) {
		t.Errorf("251 bytes in 250: %v, want out_of_memory", err)
	}
	if got := log(); got != "" {
		t.Errorf("what can never fit: %q, want nothing dropped", got)
	}
}

// TestWhatIsInUseStays checks that what work holds is not dropped for more that it wants, that layers have the rest of
// the room, and that it may be dropped once it was released.
func TestWhatIsInUseStays(t *testing.T) {
	e, use, log := shares(t, 250)
	if err := use("network"); err != nil {
		t.Fatal(err)
	}
	err := e.Do(t.Context(), "encoder", func(l *Workspace) error {
		want := func(key string, bytes, room int64) (told int64, err error) {
			_, _, err = l.Keep(0, process.Want{
				Key: key, Bytes: func() int64 { return bytes }, Room: room,
				Load: func(room int64) (process.Kept, error) { told = room; return onClose(func() {}), nil },
			})
			return told, err
		}
		if _, err := want("tower", 100, 0); err != nil {
			return err
		}
		if told, err := want("layers", 1000, 240); err != nil || told != 150 {
			t.Errorf("beside 100 bytes in use: room for %d (%v), want 150 of 250", told, err)
		}
		if _, err := want("head", 100, 0); !fault.Is(err, fault.OutOfMemory) {
			t.Errorf("100 bytes more, all in use: %v, want out_of_memory", err)
		}
		l.Release()
		_, err := want("head", 100, 0)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := log(); got != "+network -network" {
		t.Errorf("%q, want the network dropped once", got)
	}
	if got := e.keys(); !slices.Equal(got, []string{"head", "layers"}) {
		t.Errorf("resident are %v, want head and layers", got)
	}
}

// TestSmallOnesStay checks that what was used less recently stays if that which was used later has to go anyway.
func TestSmallOnesStay(t *testing.T) {
	e, use, log := shares(t, 250)
	e.keep(t, "small", 10, func() {})
	for _, name := range []string{"encoder", "network"} {
		if err := use(name); err != nil {
			t.Fatal(err)
		}
	}
	log()
	e.keep(t, "large", 130, func() {})
	if got := log(); got != "-encoder" || !slices.Equal(e.keys(), []string{"large", "network", "small"}) {
		t.Errorf("%q, resident are %v, want the encoder dropped alone", got, e.keys())
	}
}

// TestActivationsCount checks that the memory of activations of work beside ranks counts in the budget: it drops what
// was used least recently, and is dropped itself for a network that needs its room.
func TestActivationsCount(t *testing.T) {
	e, use, log := shares(t, 250)
	arena := func(bytes int) {
		t.Helper()
		err := e.Do(t.Context(), "decode", func(l *Workspace) error { _, err := l.Arena(bytes); return err })
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"encoder", "network"} {
		if err := use(name); err != nil {
			t.Fatal(err)
		}
	}
	log()
	if arena(60); log() != "-encoder" {
		t.Error("60 bytes of activations did not drop the encoder alone")
	}
	if arena(100); log() != "" || !slices.Equal(e.keys(), []string{"activations", "network"}) {
		t.Errorf("100 bytes of activations instead of 60: resident are %v, want them beside the network", e.keys())
	}
	if err := use("network"); err != nil {
		t.Fatal(err)
	}
	if err := use("vae"); err != nil || log() != "+vae" || !slices.Equal(e.keys(), []string{"vae", "network"}) {
		t.Errorf("resident are %v (%v), want the activations dropped for the autoencoder", e.keys(), err)
	}
}
