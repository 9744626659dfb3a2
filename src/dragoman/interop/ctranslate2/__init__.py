"""Export of runs to CTranslate2."""
