//go:build !race

package goldenrun

// raceDetector reports whether this build has the race detector.
const raceDetector = false
