// Package media reads and writes files of videos and sounds. All but WAV is done by ffmpeg and ffprobe as child
// processes (ADR 48): child.go starts them, probe.go asks what is in a file, decode.go and encode.go have frames and
// samples go through pipes.
package media
