// A click on a frame of a flame graph makes it as wide as the picture; one on the lowest shows all again.
addEventListener('click', ({target}) => {
  const frame = target.closest('.flames > svg');
  if (!frame) return;
  const place = (each) => [Number(each.dataset.left), Number(each.dataset.width), Number(each.dataset.depth)];
  const [left, width, depth] = place(frame), tiny = width * 1e-6;
  for (const each of frame.parentElement.children) {
    const [from, share, at] = place(each);
    const isBelow = at < depth && from <= left + tiny && from + share >= left + width - tiny;
    each.style.display = isBelow || (from + share > left + tiny && from < left + width - tiny) ? '' : 'none';
    each.setAttribute('x', isBelow ? 0 : `${100 * (from - left) / width}%`);
    each.setAttribute('width', isBelow ? '100%' : `${100 * share / width}%`);
  }
});
