//! Negating words and filler words.

pub(super) fn is_negation(word: &str) -> bool {
    matches!(
        word,
        "no" | "not"
            | "without"
            | "never"
            | "neither"
            | "nor"
            | "nothing"
            | "instead"
            | "rather"
            | "non"
            | "dont"
            | "doesnt"
            | "isnt"
            | "zero"
    ) || word.ends_with("n't")
        || word.ends_with("n’t")
}

/// Negating words of other languages.
pub(super) fn is_foreign(word: &str) -> bool {
    matches!(
        word,
        "ohne"
            | "kein"
            | "keine"
            | "keinen"
            | "keinerlei"
            | "sans"
            | "pas"
            | "aucun"
            | "aucune"
            | "sin"
            | "ninguna"
            | "senza"
            | "nessuna"
            | "sem"
            | "zonder"
            | "geen"
            | "bez"
    )
}

/// Filler words of other languages: "pas besoin de GPU", "no necesita una GPU".
pub(super) fn is_foreign_filler(word: &str) -> bool {
    matches!(
        word,
        "eine"
            | "einen"
            | "de"
            | "d"
            | "des"
            | "un"
            | "une"
            | "una"
            | "uma"
            | "besoin"
            | "necesita"
            | "necesitan"
            | "requiere"
            | "requieren"
            | "se"
            | "hace"
            | "falta"
            | "precisa"
            | "een"
    )
}

pub(super) fn is_need(word: &str) -> bool {
    matches!(
        word,
        "need"
            | "needs"
            | "needed"
            | "needing"
            | "require"
            | "requires"
            | "required"
            | "requiring"
            | "use"
            | "uses"
            | "using"
    )
}

/// "not really needed".
pub(super) fn is_adverb(word: &str) -> bool {
    matches!(word, "strictly" | "really" | "actually" | "even" | "currently")
}

pub(super) fn is_filler(word: &str) -> bool {
    is_need(word)
        || is_adverb(word)
        || matches!(
            word,
            "a" | "an"
                | "be"
                | "any"
                | "the"
                | "our"
                | "this"
                | "of"
                | "for"
                | "on"
                | "to"
                | "do"
                | "with"
                | "dedicated"
                | "special"
                | "kind"
                | "sort"
                | "real"
                | "single"
                | "extra"
                | "expensive"
                | "own"
                | "ever"
                | "such"
                | "touch"
                | "touches"
                | "run"
                | "runs"
                | "involve"
                | "involves"
                | "involving"
                | "contain"
                | "contains"
                | "or"
                | "and"
                | "it"
                | "want"
                | "wants"
                | "have"
                | "depend"
                | "depends"
                | "used"
                | "about"
                | "than"
        )
}

pub(super) fn is_contrast(word: &str) -> bool {
    matches!(word, "but" | "however" | "while" | "whereas" | "although" | "though" | "yet")
}
