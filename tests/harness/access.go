package harness

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"

	"patchbay/ipc/rights"
)

// Operator is the configuration of a nats-server in operator mode, and one user of every role.
type Operator struct {
	Conf  string
	Creds map[rights.Role]string // files
	User  map[rights.Role]string // public keys
}

// NewOperator makes an operator with one account. The permissions of a role belong to the key that signs its users: in
// the users' own tokens they would be too long for a CONNECT.
func NewOperator(t *testing.T) *Operator {
	t.Helper()
	pairs := map[string]nkeys.KeyPair{}
	for name, create := range map[string]func() (nkeys.KeyPair, error){
		"operator": nkeys.CreateOperator,
		"account":  nkeys.CreateAccount, "system": nkeys.CreateAccount,
	} {
		k, err := create()
		if err != nil {
			t.Fatal(err)
		}
		pairs[name] = k
	}
	oc, ac, sc := jwt.NewOperatorClaims(Public(t, pairs["operator"])), jwt.NewAccountClaims(Public(t, pairs["account"])),
		jwt.NewAccountClaims(Public(t, pairs["system"]))
	ac.Limits.JetStreamLimits = jwt.JetStreamLimits{MemoryStorage: -1, DiskStorage: -1, Streams: -1, Consumer: -1}
	o := &Operator{Creds: map[rights.Role]string{}, User: map[rights.Role]string{}}
	dir := t.TempDir()
	for _, role := range rights.Roles() {
		o.Creds[role] = filepath.Join(dir, string(role)+".creds")
		o.User[role] = writeCreds(t, o.Creds[role], role, ac)
	}
	token := func(c jwt.Claims) string {
		text, err := c.Encode(pairs["operator"])
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	o.Conf = fmt.Sprintf("operator: %s\nsystem_account: %s\nresolver: MEMORY\nresolver_preload: { %s: %s, %s: %s }\n",
		token(oc), sc.Subject, ac.Subject, token(ac), sc.Subject, token(sc))
	return o
}

// writeCreds adds a scoped signing key for a role to an account, writes the credentials of a user that it signs, and
// returns the user's public key.
func writeCreds(t *testing.T, path string, role rights.Role, ac *jwt.AccountClaims) string {
	t.Helper()
	signer, err := nkeys.CreateAccount()
	if err != nil {
		t.Fatal(err)
	}
	scope := jwt.NewUserScope()
	scope.Key, scope.Role = Public(t, signer), string(role)
	rights := rights.Permissions(role, "USER")
	scope.Template.Pub.Allow.Add(rights.Publish...)
	for _, subject := range rights.Subscribe {
		scope.Template.Sub.Allow.Add(strings.Replace(subject, "USER", "{{subject()}}", 1))
	}
	ac.SigningKeys.AddScopedSigner(scope)
	user, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	uc := jwt.NewUserClaims(Public(t, user))
	uc.IssuerAccount = ac.Subject
	uc.SetScoped(true)
	token, err := uc.Encode(signer)
	if err != nil {
		t.Fatal(err)
	}
	seed, err := user.Seed()
	if err != nil {
		t.Fatal(err)
	}
	text, err := jwt.FormatUserConfig(token, seed)
	if err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return uc.Subject
}

// Public returns the public key of a pair.
func Public(t *testing.T, k nkeys.KeyPair) string {
	t.Helper()
	p, err := k.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Certifier signs certificates for 127.0.0.1.
type Certifier struct {
	Cert *x509.Certificate
	Key  *ecdsa.PrivateKey
}

// Authority makes a certificate authority and writes it to ca.pem and ca-key.pem in dir.
func Authority(t *testing.T, dir string) *Certifier {
	t.Helper()
	c := &Certifier{Cert: Template("patchbay test authority")}
	c.Cert.IsCA, c.Cert.BasicConstraintsValid, c.Cert.KeyUsage = true, true, x509.KeyUsageCertSign
	c.Key = WritePair(t, filepath.Join(dir, "ca"), c.Cert, c.Cert, nil)
	return c
}

// Sign writes a new key and its certificate to PATH-key.pem and PATH.pem.
func (c *Certifier) Sign(t *testing.T, path string) {
	t.Helper()
	cert := Template("patchbay test")
	cert.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	cert.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	WritePair(t, path, cert, c.Cert, c.Key)
}

// Template returns a certificate that is valid from an hour ago for two hours.
func Template(name string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
	}
}

// WritePair writes a new key and its certificate to PATH-key.pem and PATH.pem. The certificate is self-signed if by is
// nil.
func WritePair(t *testing.T, path string, cert, parent *x509.Certificate, by *ecdsa.PrivateKey) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if by == nil {
		by = key
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, parent, &key.PublicKey, by)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{
		path + ".pem":     {Type: "CERTIFICATE", Bytes: der},
		path + "-key.pem": {Type: "EC PRIVATE KEY", Bytes: keyDER},
	} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return key
}
