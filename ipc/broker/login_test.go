package broker_test

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"golang.org/x/crypto/bcrypt"

	"patchbay/ipc/broker"
)

// hash returns a password as a file of users may have it.
func hash(t *testing.T, password string) string {
	t.Helper()
	b, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// withUsers starts a server with the users of an authorization block.
func withUsers(t *testing.T, block string) *broker.Embedded {
	t.Helper()
	file := filepath.Join(t.TempDir(), "users.conf")
	if err := os.WriteFile(file, []byte("authorization { "+block+" }"), 0o600); err != nil {
		t.Fatal(err)
	}
	return start(t, broker.EmbeddedConfig{Users: file})
}

func nkeyUser(t *testing.T) string {
	t.Helper()
	pair, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	public, err := pair.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	return public
}

// TestLoginsAreTheServers checks that who has a login, and what it may do, is what the server itself says to a
// connection with the same name and password.
func TestLoginsAreTheServers(t *testing.T) {
	t.Parallel()
	secret := hash(t, "open sesame")
	e := withUsers(t, fmt.Sprintf(`default_permissions: { publish: [ "p.jobs", "p.cancel.*" ] }, users = [
		{ user: plain, password: "a: b" }
		{ user: hashed, password: %q }
		{ user: almost, password: "$2z$04$no-hash" }
		{ user: denied, password: "d1", permissions: { publish: { deny: [ "p.free", "p.move.*" ] } } }
		{ user: both, password: "b1", permissions: { publish: { allow: "p.>", deny: "p.free" } } }
		{ user: mute, password: "m1", permissions: { publish: { allow: [] } } }
		{ user: hearing, password: "h1", permissions: { subscribe: "p.>" } }
		{ user: browser, password: "w1", allowed_connection_types: [ "WEBSOCKET" ] }
		{ user: usual, password: "u1", allowed_connection_types: [ "standard", "WEBSOCKET" ] }
		{ nkey: %q } ]`, secret, nkeyUser(t)))
	passwords := []string{"a: b", "open sesame", secret, "$2z$04$no-hash", "d1", "b1", "m1", "h1", "w1", "u1", "", "other"}
	subjects := []string{"p.jobs", "p.cancel.j", "p.cancel.j.k", "p.free", "p.move.j", "q"}
	in := 0
	for _, name := range []string{
		"plain", "hashed", "almost", "denied", "both", "mute", "hearing", "browser", "usual", "nobody", "",
	} {
		for _, password := range append(passwords, passwords...) { // the second time what was right is known
			login := e.Logins()(name, password)
			nc, err := nats.Connect(e.Address(), nats.UserInfo(name, password), nats.MaxReconnects(0))
			if (err == nil) != (login != nil) {
				t.Errorf("%q with password %q: the server says %v, the login is %v", name, password, err, login)
			}
			if err == nil {
				nc.Close()
			}
			if login == nil {
				continue
			}
			in++
			if login.Name != name {
				t.Errorf("%q is called %q", name, login.Name)
			}
			for _, subject := range subjects {
				if got, want := login.May(subject), publishes(t, e, name, password, subject); got != want {
					t.Errorf("%s may publish to %s: %v, the server says %v", name, subject, got, want)
				}
			}
		}
	}
	if in != 2*8 {
		t.Errorf("%d logins, want 16: two of each user but browser", in)
	}
	for name, password := range map[string]string{"plain": "a: b", "both": "b1", "denied": "d1"} {
		login := e.Logins()(name, password)
		for subject, want := range map[string]bool{
			"p.cancel.*": true, "p.*": name == "none", "p.move.*": name == "both",
		} {
			if got := login.May(subject); got != want {
				t.Errorf("%s may publish to all of %s: %v", name, subject, got)
			}
		}
	}
}

// publishes asks the server whether a user may publish to a subject.
func publishes(t *testing.T, e *broker.Embedded, name, password, subject string) bool {
	t.Helper()
	nc, err := nats.Connect(e.Address(), nats.UserInfo(name, password), nats.ErrorHandler(
		func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if err := nc.Publish(subject, nil); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil { // the refusal comes before the answer to it
		t.Fatal(err)
	}
	return !errors.Is(nc.LastError(), nats.ErrPermissionViolation)
}

// TestRefusalsAreAlike checks that a refusal does the same work, counted by its allocations, whether the name exists or
// not and however its password is kept, and that a password that was right once is not hashed again. A hash takes ten
// allocations; single ones come and go with what the collector leaves in pools.
func TestRefusalsAreAlike(t *testing.T) {
	login := broker.LoginOf(&server.User{Username: "plain", Password: "p1"},
		&server.User{Username: "hashed", Password: hash(t, "h1")}) // a server would allocate meanwhile
	work := func(name, password string, in bool) float64 {
		return testing.AllocsPerRun(20, func() {
			if (login(name, password) != nil) != in {
				t.Errorf("%s with password %s: let in %v", name, password, !in)
			}
		})
	}
	first := work("hashed", "wrong", false)
	if login("hashed", "h1") == nil {
		t.Fatal("the password of the hash is refused")
	}
	refused := []float64{
		first, work("hashed", "wrong", false), work("plain", "wrong", false), work("nobody", "wrong", false),
		work("nobody", "p1", false),
	}
	right := []float64{work("hashed", "h1", true), work("plain", "p1", true)}
	for _, n := range refused {
		if !(math.Abs(n-refused[0]) <= 2 && n >= right[0]+8) {
			t.Errorf("refusals allocate %v times, want all alike and more than the %v of a known password", refused, right)
		}
	}
	if !(math.Abs(right[0]-right[1]) <= 2) {
		t.Errorf("a password that is known allocates %v times", right)
	}
	if keys := withUsers(t, "users = [ { nkey: "+nkeyUser(t)+" } ]"); keys.Logins() != nil {
		t.Error("there are logins without a password")
	}
	if start(t, broker.EmbeddedConfig{}).Logins() != nil {
		t.Error("there are logins without users")
	}
}
