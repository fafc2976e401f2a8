//go:build !race

package goldenrun

// raceDetector tells whether the race detector watches this build.
const raceDetector = false
