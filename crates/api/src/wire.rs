//! Enums whose values are fixed words in JSON.
//!
//! A newer server may send a word that an older client does not have. Such a word must not fail the whole response,
//! so each enum has a fallback: `wire_enum!` maps the word to one unit variant, `open_enum!` keeps the word itself.

/// A `Copy` enum of fixed words; any other word reads as the `else` variant.
macro_rules! wire_enum {
    (
        $(#[$meta:meta])*
        pub enum $name:ident else $fallback:ident {
            $($(#[doc = $doc:literal])* $variant:ident = $word:literal,)+
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[doc = $doc])* $variant,)+
        }

        impl $name {
            /// Every value, in the order of declaration.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }

            /// Value of a word; the fallback for an unknown word.
            pub fn from_word(word: &str) -> Self {
                match word {
                    $($word => Self::$variant,)+
                    _ => Self::$fallback,
                }
            }
        }

        $crate::wire::string_traits!($name, [$($word,)+]);
    };
}

/// An enum of known words that also carries unknown ones, as `Other`. `"New" | "Old"` still reads a former word.
macro_rules! open_enum {
    (
        $(#[$meta:meta])*
        pub enum $name:ident {
            $($(#[doc = $doc:literal])* $variant:ident = $word:literal $(| $former:literal)*,)+
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[doc = $doc])* $variant,)+
            /// A word of another system or of a newer version.
            Other(String),
        }

        impl $name {
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$variant => $word,)+
                    Self::Other(word) => word,
                }
            }

            pub fn from_word(word: &str) -> Self {
                match word {
                    $($word $(| $former)* => Self::$variant,)+
                    other => Self::Other(other.to_owned()),
                }
            }
        }

        $crate::wire::string_traits!($name, []);
    };
}

/// JSON, text and schema of an enum with `as_str` and `from_word`.
macro_rules! string_traits {
    ($name:ident, [$($word:literal,)*]) => {
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl From<&str> for $name {
            fn from(word: &str) -> Self {
                Self::from_word(word)
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let word = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                Ok(Self::from_word(&word))
            }
        }

        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                let words: &[&str] = &[$($word,)*];
                let schema = utoipa::openapi::schema::ObjectBuilder::new().schema_type(
                    utoipa::openapi::schema::SchemaType::new(utoipa::openapi::schema::Type::String),
                );
                if words.is_empty() {
                    schema.into()
                } else {
                    schema.enum_values(Some(words.iter().copied())).into()
                }
            }
        }

        impl utoipa::ToSchema for $name {}
    };
}

pub(crate) use {open_enum, string_traits, wire_enum};
