#!/bin/sh
# Copies models over a link that limits the size of a transfer: in pieces, which are joined on the other machine.
#   gpu-models.sh split FOLDER MODEL.gguf...   FOLDER/NAME.gguf.00, .01, ... of at most PIECE MiB (default: 24), and
#                                              FOLDER/models.sha256: hashes of the pieces and of the whole files
#   gpu-models.sh take FOLDER TO               there, after each transfer: pieces that are in FOLDER go to TO; a model
#                                              whose pieces are all there is joined and checked. FOLDER has
#                                              models.sha256 too. Exit 0: all models are there, 3: some are not yet
set -eu

split_all() {
    out=$1
    shift
    mkdir -p "$out"
    : >"$out/models.sha256"
    for model in "$@"; do
        name=$(basename "$model")
        split -d -a 2 -b "${PIECE:-24}M" "$model" "$out/$name."
        (cd "$out" && sha256sum "$name".[0-9][0-9]) >>"$out/models.sha256"
        printf '%s  %s\n' "$(sha256sum <"$model" | cut -d' ' -f1)" "$name" >>"$out/models.sha256"
    done
    ls -l "$out"
}

hash_of() {
    sed -n "s/^\([0-9a-f]*\)  $1\$/\1/p" "$2/models.sha256"
}

# is_right FILE NAME: whether the file has the hash that the list has for that name.
is_right() {
    [ "$(sha256sum <"$1" | cut -d' ' -f1)" = "$(hash_of "$2" "$to")" ]
}

# join_one NAME: joins the pieces of a model if all are there.
join_one() {
    for piece in $(sed -n "s/^[0-9a-f]*  \($1\.[0-9][0-9]\)\$/\1/p" "$to/models.sha256"); do
        if [ ! -f "$to/$piece" ]; then
            echo "$1: $piece is not here yet"
            return 1
        fi
    done
    cat "$to/$1".[0-9][0-9] >"$to/$1.part"
    if ! is_right "$to/$1.part" "$1"; then
        echo "$1: its pieces do not make the model"
        exit 1
    fi
    mv "$to/$1.part" "$to/$1"
    rm "$to/$1".[0-9][0-9]
    echo "$1: joined"
}

take() {
    from=$1 to=$2 missing=0
    mkdir -p "$to"
    cp "$from/models.sha256" "$to/"
    for piece in "$from"/*.gguf.[0-9][0-9]; do
        [ -f "$piece" ] || continue
        is_right "$piece" "$(basename "$piece")" || { echo "$piece: damaged"; exit 1; }
        cp "$piece" "$to/"
    done
    for name in $(sed -n 's/^[0-9a-f]*  \(.*\.gguf\)$/\1/p' "$to/models.sha256"); do
        [ -f "$to/$name" ] || join_one "$name" || missing=3
    done
    exit "$missing"
}

case ${1:-} in
split) shift; split_all "$@" ;;
take) shift; take "$@" ;;
*) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
