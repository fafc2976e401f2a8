package wire

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

var errNoURL = errors.New("it is no URL: want nats://HOST:PORT or nats://USER:PASSWORD@HOST:PORT, with special " +
	"characters of the password written as in %2F for /")

// Dial is nats.Connect for URLs that people write. It refuses those whose password ends the host: what follows the
// first @ of user:p@ss/word@host would be looked up, and shown.
func Dial(urls string, opts ...nats.Option) (*nats.Conn, error) {
	for one := range strings.SplitSeq(urls, ",") {
		_, rest, ok := strings.Cut(one, "://")
		if !ok {
			rest = one
		}
		if _, path, _ := strings.Cut(rest, "/"); strings.Contains(path, "@") {
			return nil, errNoURL
		}
	}
	return nats.Connect(urls, opts...)
}

// Trusted adds advice to the error of a connection to a NATS server that failed because of TLS, and replaces that of a
// URL that cannot be parsed, which repeats parts of it: a password with special characters is what parsing often fails
// at. Other errors, and nil, are returned unchanged.
func Trusted(err error) error {
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	var alert tls.AlertError
	var malformed *url.Error
	advice := ""
	switch {
	case errors.As(err, &malformed):
		return errNoURL
	case errors.As(err, &unknown):
		advice = "its certificate is signed by an authority that is not trusted here: give the authority's by --tls-ca FILE"
	case errors.As(err, &name):
		advice = fmt.Sprintf("its certificate is for %s: use a name that is in it, or put %s into it",
			namesOf(name.Certificate), name.Host)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired && time.Now().Before(invalid.Cert.NotBefore):
		advice = fmt.Sprintf("its certificate is valid from %s on: is the clock of this machine right?",
			invalid.Cert.NotBefore.UTC().Format(time.RFC3339))
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		advice = fmt.Sprintf("its certificate expired at %s: renew it there, and reload the server",
			invalid.Cert.NotAfter.UTC().Format(time.RFC3339))
	case errors.Is(err, nats.ErrSecureConnWanted):
		advice = "it has no TLS: use nats:// without --tls-ca and --tls-cert, or give the server a certificate"
	case errors.Is(err, nats.ErrSecureConnRequired):
		advice = "it insists on TLS: use tls://, and --tls-ca for an authority of your own"
	case errors.As(err, &alert):
		advice = "it refuses our side of TLS: it may want a certificate of ours, by --tls-cert and --tls-key, that its " +
			"authority has signed and that is valid"
	default:
		return err
	}
	return fmt.Errorf("%s (%w)", advice, err)
}

// namesOf lists the first hosts that a certificate is valid for.
func namesOf(c *x509.Certificate) string {
	names := c.DNSNames
	for _, ip := range c.IPAddresses {
		names = append(names, net.IP.String(ip))
	}
	if len(names) == 0 {
		return "nobody"
	}
	return strings.Join(names[:min(len(names), 5)], ", ")
}
