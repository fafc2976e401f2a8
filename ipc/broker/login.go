package broker

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"regexp"
	"slices"
	"sync"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"golang.org/x/crypto/bcrypt"
)

// Login is who a user of the file of users is, and may do, at a door that is not NATS.
type Login struct {
	Name    string
	publish *server.SubjectPermission // nil: everything
}

// May reports whether the user may publish to a subject; one with a wildcard: to all subjects that it matches.
func (l *Login) May(subject string) bool {
	if l.publish == nil {
		return true
	}
	allowed := l.publish.Allow == nil || slices.ContainsFunc(l.publish.Allow, func(filter string) bool {
		return server.SubjectMatchesFilter(subject, filter)
	})
	return allowed && !slices.ContainsFunc(l.publish.Deny, func(filter string) bool {
		return server.SubjectsCollide(subject, filter)
	})
}

// logins are the users of the file who have passwords. It is safe for concurrent use.
type logins struct {
	users map[string]*server.User
	// guess and nobody are compared in vain where there is nothing else to compare: how long a refusal takes does not
	// tell names that exist from others. guess is a hash; empty: no user has one.
	guess  string
	nobody []byte
	key    []byte

	hashing sync.Mutex // held while a password is hashed: those who guess get no more than one processor
	mu      sync.Mutex
	proven  map[string][]byte // sum of the right password by name: hashing again takes a tenth of a second
}

// newLogins returns the users that may come with a password and by any kind of connection; nil: there are none.
func newLogins(users []*server.User) *logins {
	l := &logins{users: map[string]*server.User{}, proven: map[string][]byte{}, key: []byte(rand.Text())}
	for _, u := range users {
		if _, standard := u.AllowedConnectionTypes[jwt.ConnectionTypeStandard]; len(u.AllowedConnectionTypes) > 0 &&
			!standard || u.ProxyRequired {
			continue
		}
		l.users[u.Username] = u
		if hashed(u.Password) {
			l.guess = u.Password
		} else {
			l.proven[u.Username] = l.sum(u.Password)
		}
	}
	if len(l.users) == 0 {
		return nil
	}
	l.nobody = l.sum(rand.Text())
	return l
}

// Logins returns a function that returns the user of a name and password, which are compared as the server does, or nil
// if there is no such user. It is nil if no user has a password, or there are no users. The file is read once, at the
// start, as it is for the server.
func (e *Embedded) Logins() func(name, password string) *Login {
	if e.logins == nil {
		return nil
	}
	return e.logins.login
}

func (l *logins) login(name, password string) *Login {
	sum := l.sum(password)
	l.mu.Lock()
	proven, ok := l.proven[name]
	l.mu.Unlock()
	if !ok {
		proven = l.nobody
	}
	u := l.users[name]
	right := subtle.ConstantTimeCompare(sum, proven) == 1 || l.hashedAs(u, password, sum)
	if u == nil || !right {
		return nil
	}
	login := &Login{Name: name}
	if u.Permissions != nil {
		login.publish = u.Permissions.Publish
	}
	return login
}

// hashedAs compares a password with the hash of a user.
func (l *logins) hashedAs(u *server.User, password string, sum []byte) bool {
	real := u != nil && hashed(u.Password)
	hash := l.guess
	if real {
		hash = u.Password
	}
	if hash == "" {
		return false
	}
	l.hashing.Lock()
	defer l.hashing.Unlock()
	if bcrypt.CompareHashAndPassword([]byte(hash), []byte(password)) != nil || !real {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.proven[u.Username] = sum
	return true
}

// sum is what is kept and compared in place of a password; its key is gone with the process.
func (l *logins) sum(password string) []byte {
	h := hmac.New(sha256.New, l.key)
	h.Write([]byte(password))
	return h.Sum(nil)
}

// hashes is what the server takes for a hash by bcrypt, and not for the password itself.
var hashes = regexp.MustCompile(`^\$2[abxy]\$\d{2}\$.*`)

func hashed(password string) bool { return hashes.MatchString(password) }
