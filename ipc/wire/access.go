package wire

import (
	"crypto/tls"
	"fmt"
	"net/url"
	"os"
	"strings"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
)

// Access says how a connection authenticates to a NATS server, and which servers it trusts. A name and password, or a
// token, are part of the URL. The zero value sets nothing.
type Access struct {
	Creds string // file with a user's JWT and seed, as nsc writes it
	NKey  string // file with the seed of a user's NKey
	CA    string // PEM file of authorities that may sign the server's certificate; empty: those of the system
	Cert  string // PEM file of the client's certificate, which the server may ask for
	Key   string // and of its private key
	Inbox string // prefix of the subjects that replies come on; empty: _INBOX.<user>, or _INBOX where the user has no name
}

// Check returns an error for settings that contradict each other or cannot work. Files are only read when a connection
// is made.
func (a Access) Check() error {
	switch {
	case a.Creds != "" && a.NKey != "":
		return fmt.Errorf("--creds and --nkey exclude each other: both say who the user is")
	case (a.Cert == "") != (a.Key == ""):
		return fmt.Errorf("--tls-cert and --tls-key go together")
	}
	if strings.ContainsAny(a.Inbox, "*> \t") || strings.HasSuffix(a.Inbox, ".") || strings.HasPrefix(a.Inbox, "$") ||
		strings.HasPrefix(a.Inbox, SubjectRoot) {
		return fmt.Errorf("--inbox-prefix %q: want a subject without wildcards that the daemon may answer to, as in "+
			"_INBOX.alice", a.Inbox)
	}
	return nil
}

// Options returns the options of a connection to a server, given by its URL. It returns an error if Check does, or if a
// file is missing or invalid.
func (a Access) Options(server string) ([]nats.Option, error) {
	if err := a.Check(); err != nil {
		return nil, err
	}
	var opts []nats.Option
	user, err := a.user(server)
	if err != nil {
		return nil, err
	}
	switch {
	case a.Inbox != "":
		opts = append(opts, nats.CustomInboxPrefix(a.Inbox))
	case user != "":
		opts = append(opts, nats.CustomInboxPrefix(InboxOf(user)))
	}
	if a.Creds != "" {
		opts = append(opts, nats.UserCredentials(a.Creds))
	}
	if a.NKey != "" {
		o, err := nats.NkeyOptionFromSeed(a.NKey)
		if err != nil {
			return nil, fmt.Errorf("--nkey %s: %w", a.NKey, err)
		}
		opts = append(opts, o)
	}
	if a.CA != "" {
		if _, err := os.Stat(a.CA); err != nil {
			return nil, fmt.Errorf("--tls-ca: %w", err)
		}
		opts = append(opts, nats.RootCAs(a.CA))
	}
	if a.Cert != "" {
		if _, err := tls.LoadX509KeyPair(a.Cert, a.Key); err != nil {
			return nil, fmt.Errorf("--tls-cert %s, --tls-key %s: %w", a.Cert, a.Key, err)
		}
		opts = append(opts, nats.ClientCert(a.Cert, a.Key))
	}
	return opts, nil
}

// Connect connects to the server at a URL, or to the one inside this process if inside is not nil. It returns an error
// if the server cannot be reached now; a connection that is lost later is retried forever. name is how the server lists
// it.
func Connect(url string, access Access, inside nats.InProcessConnProvider, name string, more ...nats.Option,
) (*nats.Conn, error) {
	opts, err := access.Options(url)
	if err != nil {
		return nil, err
	}
	if inside != nil {
		opts = append(opts, nats.InProcessServer(inside))
	}
	// the library's own handler prints lines among those of the log; who has to know sets one, or waits for a request
	opts = append(opts, nats.Name(name), nats.MaxReconnects(-1),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	nc, err := Dial(url, append(opts, more...)...)
	if err != nil {
		return nil, fmt.Errorf("connect to NATS at %s: %w", Redact(url), Trusted(err))
	}
	return nc, nil
}

// user returns the name by which the server knows the connection: the user in the URL, or the public key of the NKey or
// of the JWT; empty if there is none.
func (a Access) user(server string) (string, error) {
	switch {
	case a.NKey != "":
		seed, err := os.ReadFile(a.NKey)
		if err != nil {
			return "", fmt.Errorf("--nkey: %w", err)
		}
		pair, err := nkeys.ParseDecoratedNKey(seed)
		if err != nil {
			return "", fmt.Errorf("--nkey %s: %w", a.NKey, err)
		}
		defer pair.Wipe()
		return pair.PublicKey()
	case a.Creds != "":
		text, err := os.ReadFile(a.Creds)
		if err != nil {
			return "", fmt.Errorf("--creds: %w", err)
		}
		token, err := nkeys.ParseDecoratedJWT(text)
		if err != nil {
			return "", fmt.Errorf("--creds %s: %w", a.Creds, err)
		}
		claims, err := jwt.DecodeUserClaims(token)
		if err != nil {
			return "", fmt.Errorf("--creds %s: %w", a.Creds, err)
		}
		return claims.Subject, nil
	}
	first, _, _ := strings.Cut(server, ",")
	u, err := url.Parse(strings.TrimSpace(first))
	if err != nil || u.User == nil {
		//nolint:nilerr // a bare host:port is no URL and names nobody; the error of connecting says what is wrong with it
		return "", nil
	}
	if _, hasPassword := u.User.Password(); !hasPassword {
		return "", nil // a token
	}
	return u.User.Username(), nil
}
