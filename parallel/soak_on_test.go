//go:build soak

package parallel

// soak says that tests run in their long form.
const soak = true
