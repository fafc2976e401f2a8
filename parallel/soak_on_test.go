//go:build soak

package parallel

// soak says that tests run in their long form: go test -tags soak.
const soak = true
