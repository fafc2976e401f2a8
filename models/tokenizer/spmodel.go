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

// spModel is the content of a SentencePiece .model file; defaults are those of sentencepiece_model.proto.
type spModel struct {
	pieces []scoredPiece
	reader scoredPiece

	modelType    int // 1 unigram, 2 bpe
	byteFallback bool
	spaceSuffix  bool
	endPiece     string

	charsmap    []byte
	dummyPrefix bool
	dropSpaces  bool
	markSpaces  bool
}

// FromSentencePiece reads a .model file of type unigram or BPE. Control pieces ("</s>") that occur in a text are
// encoded as text, as in the original library. End is "</s>" if the file has it; Start is None (T5 has none).
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

// newSPModel returns a model with the defaults of the format and no pieces.
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
	m.pieces = make([]scoredPiece, 0, count)
	readPiece := m.reader.field // bound once for all pieces
	err := eachField(data, func(f protoField) error {
		if f.wire != wireBytes {
			return nil
		}
		switch f.number {
		case 1:
			m.reader = scoredPiece{kind: pieceNormal}
			if err := eachField(f.bytes, readPiece); err != nil {
				return err
			}
			return m.add(m.reader)
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

// field decodes a field of a SentencePiece message: 1 piece, 2 score, 3 type.
func (p *scoredPiece) field(f protoField) error {
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

func (m *spModel) add(p scoredPiece) error {
	n := len(m.pieces)
	switch {
	case p.piece == "" || !utf8.ValidString(p.piece) || len(p.piece) > longestPiece:
		return fmt.Errorf("piece %d has %d bytes; it must be UTF-8 of 1 to %d bytes", n, len(p.piece), longestPiece)
	case math.IsNaN(p.score) || math.IsInf(p.score, 0):
		return fmt.Errorf("piece %d (%.40q) has score %v", n, p.piece, p.score)
	}
	m.pieces = append(m.pieces, p)
	return nil
}

// trainerField decodes a TrainerSpec field: 3 model_type, 24 treat_whitespace_as_suffix, 35 byte_fallback, 47
// eos_piece.
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

// normalizerField decodes a field of NormalizerSpec: 2 precompiled_charsmap, 3 add_dummy_prefix, 4
// remove_extra_whitespaces, 5 escape_whitespaces.
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

func (m *spModel) tokenizer() (*Tokenizer, error) {
	unknown, end := None, None
	ids, err := pieceIDs(m.pieces)
	if err != nil {
		return nil, err
	}
	for id, p := range m.pieces {
		switch {
		case p.kind == pieceUnknown && unknown == None:
			unknown = id
		case p.kind == pieceControl && p.piece == m.endPiece:
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
			return id, ok && m.pieces[id].kind == pieceByte
		})
		if bytePieces == nil {
			return nil, errors.New("byte_fallback is set but not all of <0x00>..<0xFF> are byte pieces")
		}
	}
	var body model
	kind := "sentencepiece-unigram"
	switch m.modelType {
	case 1:
		words, err := newUnigram(m.pieces, unknown)
		if err != nil {
			return nil, err
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

// spUnigram normalizes a text and segments it as a whole.
type spUnigram struct {
	norm  *spNormalizer
	words *unigram
}

func (s *spUnigram) encode(text string, _ bool, ids []int) []int {
	return s.words.segment(s.norm.apply(text), ids)
}
