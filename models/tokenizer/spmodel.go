package tokenizer

import (
	"errors"
	"fmt"
	"math"
	"unicode/utf8"
)

// Piece types of sentencepiece_model.proto (ModelProto.SentencePiece.Type).
const (
	pieceNormal  = 1
	pieceUnknown = 2
	pieceControl = 3
	pieceUser    = 4
	pieceUnused  = 5
	pieceByte    = 6
)

// spModel is what a SentencePiece .model file says; defaults are those of sentencepiece_model.proto.
type spModel struct {
	pieces []string
	scores []float64
	types  []uint8
	reader spPiece

	modelType    int // 1 unigram, 2 bpe
	byteFallback bool
	spaceSuffix  bool
	endPiece     string

	charsmap    []byte
	dummyPrefix bool
	dropSpaces  bool
	markSpaces  bool
}

// FromSentencePiece reads a .model file of type unigram or BPE. Control pieces ("</s>") written out in a text stay
// text, as in the original library. End is "</s>" if the file has it; Start is None (T5 has none).
func FromSentencePiece(data []byte) (*Tokenizer, error) {
	var t *Tokenizer
	m, err := parseSPModel(data)
	if err == nil {
		t, err = m.tokenizer()
	}
	if err != nil {
		return nil, fmt.Errorf("sentencepiece model: %w", err)
	}
	return t, nil
}

// newSPModel has the defaults of the format, and no pieces.
func newSPModel() *spModel {
	return &spModel{modelType: 1, endPiece: "</s>", dummyPrefix: true, dropSpaces: true, markSpaces: true}
}

func parseSPModel(data []byte) (*spModel, error) {
	count := 0
	if err := eachField(data, func(f protoField) error {
		if f.number == 1 && f.wire == wireBytes {
			count++
		}
		return nil
	}); err != nil {
		return nil, err
	}
	if count > maxPieces {
		return nil, fmt.Errorf("%d pieces, allowed are %d", count, maxPieces)
	}
	m := newSPModel()
	m.pieces, m.scores, m.types = make([]string, 0, count), make([]float64, 0, count), make([]uint8, 0, count)
	readPiece := m.reader.field // bound once for all pieces
	err := eachField(data, func(f protoField) error {
		if f.wire != wireBytes {
			return nil
		}
		switch f.number {
		case 1:
			m.reader = spPiece{kind: pieceNormal}
			if err := eachField(f.bytes, readPiece); err != nil {
				return err
			}
			return m.add(m.reader.piece, m.reader.score, m.reader.kind)
		case 2:
			return eachField(f.bytes, m.trainerField)
		case 3:
			return eachField(f.bytes, m.normalizerField)
		}
		return nil
	})
	if err == nil && len(m.pieces) == 0 {
		err = errors.New("no pieces in it")
	}
	return m, err
}

// spPiece is one SentencePiece message: 1 piece, 2 score, 3 type.
type spPiece struct {
	piece string
	score float64
	kind  uint8
}

func (p *spPiece) field(f protoField) error {
	switch {
	case f.number == 1 && f.wire == wireBytes:
		p.piece = string(f.bytes)
	case f.number == 2 && f.wire == wireFixed32:
		p.score = float64(math.Float32frombits(uint32(f.value)))
	case f.number == 3 && f.wire == wireVarint:
		p.kind = uint8(min(f.value, 7))
	}
	return nil
}

// add appends a piece.
func (m *spModel) add(piece string, score float64, kind uint8) error {
	n := len(m.pieces)
	switch {
	case piece == "" || !utf8.ValidString(piece) || len(piece) > longestPiece:
		return fmt.Errorf("piece %d has %d bytes; it must be UTF-8 of 1 to %d bytes", n, len(piece), longestPiece)
	case math.IsNaN(score) || math.IsInf(score, 0):
		return fmt.Errorf("piece %d (%.40q) has score %v", n, piece, score)
	}
	m.pieces, m.scores, m.types = append(m.pieces, piece), append(m.scores, score), append(m.types, kind)
	return nil
}

// trainerField reads TrainerSpec: 3 model_type, 24 treat_whitespace_as_suffix, 35 byte_fallback, 47 eos_piece.
func (m *spModel) trainerField(f protoField) error {
	switch {
	case f.number == 3 && f.wire == wireVarint:
		m.modelType = int(min(f.value, 5))
	case f.number == 24 && f.wire == wireVarint:
		m.spaceSuffix = f.value != 0
	case f.number == 35 && f.wire == wireVarint:
		m.byteFallback = f.value != 0
	case f.number == 47 && f.wire == wireBytes:
		m.endPiece = string(f.bytes)
	}
	return nil
}

// normalizerField reads NormalizerSpec: 2 precompiled_charsmap, 3 add_dummy_prefix, 4 remove_extra_whitespaces,
// 5 escape_whitespaces.
func (m *spModel) normalizerField(f protoField) error {
	switch {
	case f.number == 2 && f.wire == wireBytes:
		m.charsmap = f.bytes
	case f.number == 3 && f.wire == wireVarint:
		m.dummyPrefix = f.value != 0
	case f.number == 4 && f.wire == wireVarint:
		m.dropSpaces = f.value != 0
	case f.number == 5 && f.wire == wireVarint:
		m.markSpaces = f.value != 0
	}
	return nil
}

// tokenizer builds the Tokenizer. Scores of user-defined pieces and the unknown penalty follow
// SentencePiece src/unigram_model.cc (EncodeOptimized) and src/bpe_model.cc.
func (m *spModel) tokenizer() (*Tokenizer, error) {
	unknown, end := None, None
	lowest, highest := math.MaxFloat32, -math.MaxFloat32
	ids := map[string]int32{}
	for id, kind := range m.types {
		if first, twice := ids[m.pieces[id]]; twice {
			return nil, fmt.Errorf("piece %.40q stands twice, as %d and %d", m.pieces[id], first, id)
		}
		ids[m.pieces[id]] = int32(id)
		switch {
		case kind == pieceUnknown && unknown == None:
			unknown = id
		case kind == pieceNormal:
			lowest, highest = min(lowest, m.scores[id]), max(highest, m.scores[id])
		case kind == pieceControl && m.pieces[id] == m.endPiece:
			end = id
		}
	}
	if unknown == None {
		return nil, errors.New("no unknown piece in it")
	}
	norm, err := newSPNormalizer(m)
	if err != nil {
		return nil, err
	}
	var bytePieces *[256]int32
	if m.byteFallback {
		bytePieces = byteTable(func(s string) (int32, bool) {
			id, ok := ids[s]
			return id, ok && m.types[id] == pieceByte
		})
		if bytePieces == nil {
			return nil, errors.New("byte_fallback is set but not all of <0x00>..<0xFF> are byte pieces")
		}
	}
	var body model
	kind := "sentencepiece-unigram"
	switch m.modelType {
	case 1:
		words, err := newUnigram(m.pieces, m.scores, lowest, unknown,
			func(id int) bool { return m.types[id] == pieceNormal || m.types[id] == pieceUser })
		if err != nil {
			return nil, err
		}
		for id, kind := range m.types {
			if kind == pieceUser {
				words.scores[id] = float64(len(m.pieces[id]))*highest - 0.1
			}
		}
		words.single, words.bytes = true, bytePieces
		body = &spUnigram{norm: norm, words: words}
	case 2:
		kind = "sentencepiece-bpe"
		body = newSPBPE(m, norm, unknown, bytePieces)
	default:
		return nil, fmt.Errorf("model_type %d is not supported; known are 1 (unigram) and 2 (BPE)", m.modelType)
	}
	t, err := newTokenizer(kind, ids, body)
	if err != nil {
		return nil, err
	}
	t.End, t.Size = end, len(m.pieces)
	return t, nil
}

// spUnigram normalises a text and segments it whole.
type spUnigram struct {
	norm  *spNormalizer
	words *unigram
}

func (s *spUnigram) encode(text string, _ bool, ids []int) []int {
	return s.words.segment(s.norm.apply(text), ids)
}
