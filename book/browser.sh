# Sourced by scripts that make pictures: `$browser` is a Chromium, or the one in BROWSER, and `pictures PAGE
# NAME HEIGHT` takes a light and a dark picture of the page, 1200 pixels wide. Needs `$work`, a folder for the
# browser's files, and pngquant.

browser=
for name in ${BROWSER:-} chromium chromium-browser google-chrome; do
  if "$name" --version >/dev/null 2>&1; then browser=$name; break; fi
done
if [ -z "$browser" ]; then
  echo "there is no browser here: install chromium, or name one with BROWSER=..." >&2
  exit 1
fi
if ! pngquant --version >/dev/null 2>&1; then
  echo "there is no pngquant here, which makes the pictures small: install it" >&2
  exit 1
fi

images=book/src/images
mkdir -p "$images"

# 128 colours take a quarter of the bytes without a visible difference.
pictures() {
  for scheme in light:1 dark:0; do
    picture=$images/$2-${scheme%:*}.png
    "$browser" --headless --no-sandbox --disable-gpu --hide-scrollbars --no-first-run \
      --disable-background-networking --user-data-dir="$work/browser" \
      --blink-settings=preferredColorScheme="${scheme#*:}" --window-size="1200,$3" \
      --screenshot="$picture" "file://$1" >/dev/null 2>&1
    pngquant --force --nofs --ext .png 128 "$picture"
    echo "$picture: $(wc -c <"$picture") bytes"
  done
}
