package remote

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"time"
)

// SecretLength is the minimum length in bytes of a cluster's secret, which must be random: whoever reaches a host sees
// the public key that is derived from it, and could try out passwords offline.
const SecretLength = 32

// Key is what the machines of a cluster recognize each other by: a key pair derived from their secret.
type Key struct {
	certificate tls.Certificate
	public      ed25519.PublicKey
}

// errOtherKey says that the other side has the key of another cluster.
var errOtherKey = errors.New("it has another cluster key: give both sides the same file")

// NewKey derives the key from a secret: the seed of Ed25519 by HKDF with SHA-256 (RFC 5869), in a self-signed
// certificate of which only the public key is used.
func NewKey(secret []byte) (*Key, error) {
	if len(secret) < SecretLength {
		return nil, fmt.Errorf("the secret has %d bytes: want %d random ones or more", len(secret), SecretLength)
	}
	seed, err := hkdf.Key(sha256.New, secret, []byte("patchbay cluster"), "ed25519 seed 1", ed25519.SeedSize)
	if err != nil {
		return nil, err
	}
	private := ed25519.NewKeyFromSeed(seed)
	k := &Key{public: private.Public().(ed25519.PublicKey)}
	form := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "patchbay"},
		NotBefore: time.Unix(0, 0), NotAfter: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC),
	}
	body, err := x509.CreateCertificate(rand.Reader, form, form, k.public, private)
	if err != nil {
		return nil, err
	}
	k.certificate = tls.Certificate{Certificate: [][]byte{body}, PrivateKey: private}
	return k, nil
}

// config returns TLS 1.3 in which both sides prove that they have the private key, whatever their certificates say.
func (k *Key) config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{k.certificate},
		ClientAuth:             tls.RequireAnyClientCert,
		InsecureSkipVerify:     true, //nolint:gosec // VerifyConnection compares the key itself
		VerifyConnection:       k.verify,
		SessionTicketsDisabled: true,
	}
}

func (k *Key) verify(s tls.ConnectionState) error {
	if len(s.PeerCertificates) == 0 || !k.public.Equal(s.PeerCertificates[0].PublicKey) {
		return errOtherKey
	}
	return nil
}
