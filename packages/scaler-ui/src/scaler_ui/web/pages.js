let here, kept;
// The reader's choice of colours. Quasar, which has the say once it is there, is loaded by scripts that follow this one.
const dark = new URLSearchParams(location.search).get('dark') ?? localStorage.getItem('dark');
const isDark = dark === null ? matchMedia('(prefers-color-scheme: dark)').matches : dark !== '0';
document.body.classList.toggle('body--dark', isDark);
addEventListener('DOMContentLoaded', () => dark && Quasar.Dark.set(dark !== '0'));
window.switchTheme = () => {
  Quasar.Dark.toggle();
  localStorage.setItem('dark', Quasar.Dark.isActive ? '1' : '0');
};
// Style sheets do not reach what is written on a canvas: it is drawn again when the theme changes.
window.chartInk = () => getComputedStyle(document.body).getPropertyValue('--quiet');
let ink = chartInk();
new MutationObserver(() => {
  if (ink === chartInk()) return;
  ink = chartInk();
  document.querySelectorAll('.nicegui-echart:has(canvas)').forEach((chart) => getElement(chart)?.chart?.resize());
}).observe(document.body, {attributeFilter: ['class']});
// The server calls this each second. One that stands still, and a network that drops all, close no connection.
let heard;
window.hear = () => { heard = performance.now(); };
setInterval(() => document.body.classList.toggle('unheard', performance.now() - (heard ?? Infinity) > 6000), 1000);
// What of a table is shown is in the address. NiceGUI reads the page of an entry of the history from its state.
window.replaceAddress = (path, place) => {
  const prefix = window.path_prefix || '';
  if (location.pathname === prefix + path) history.replaceState({page: place}, '', prefix + place);
};
// Opens one of our pages as a link does.
window.openPage = (address) => {
  const link = Object.assign(document.createElement('a'), {href: address});
  document.body.append(link);
  link.click();
  link.remove();
};
// Copies the text beside a button. Browsers have a clipboard only where the connection is safe.
window.copyText = async (button) => {
  const source = button.closest('.panel').querySelector('.fault');
  if (navigator.clipboard) await navigator.clipboard.writeText(source.innerText);
  else {
    getSelection().selectAllChildren(source);
    document.execCommand('copy');
  }
  Quasar.Notify.create({message: 'Copied', timeout: 1500});
};
const nameOf = (link) => link.closest('tr').cells[0].innerText;
// Makes tables sortable by keyboard, and keeps the link of the current page visible on narrow screens. Slots are not used, because every update replaces them, and the focus is lost.
new MutationObserver(() => {
  for (const head of document.querySelectorAll('th.sortable')) {
    // Setting an attribute again has the browser style the whole table.
    if (!head.hasAttribute('tabindex')) head.tabIndex = 0;
    const sorted = head.classList.contains('sort-desc') ? 'descending' : 'ascending';
    const order = head.classList.contains('sorted') ? sorted : 'none';
    if (head.ariaSort !== order) head.ariaSort = order;
  }
  // Options are children of the list only if nothing between them can have the focus.
  document.querySelectorAll('[role=listbox] > [tabindex]:not([role])').forEach((between) => between.removeAttribute('tabindex'));
  if (kept && document.activeElement === document.body) {
    const rows = [...document.querySelectorAll('.opens tbody tr')];
    const links = rows.map((row) => row.cells[kept.cell]?.querySelector('a'));
    const same = links.find((link) => link?.href === kept.href && nameOf(link) === kept.name);
    (same ?? links[kept.row])?.focus({preventScroll: true});
  }
  const link = document.querySelector('nav [aria-current]');
  if (link && link !== here) link.parentElement.scrollLeft = link.offsetLeft - link.parentElement.clientWidth / 2;
  here = link;
}).observe(document.documentElement, {childList: true, subtree: true, attributeFilter: ['class', 'aria-current']});
// A link in a row that moves or leaves when its table is renewed loses the focus, and nothing else gets it.
addEventListener('focusin', ({target}) => {
  const cell = target.matches('.opens tbody a') && target.closest('td');
  kept = cell && {name: nameOf(target), href: target.href, row: cell.parentElement.sectionRowIndex, cell: cell.cellIndex};
});
// A click anywhere in a row opens what the row is about, which its first link names.
addEventListener('click', ({target}) => {
  const row = !target.closest('a') && target.closest('.opens tbody tr');
  if (row && !String(getSelection())) row.querySelector('a')?.click();
});
addEventListener('pointerdown', () => { kept = null; });
addEventListener('mouseover', ({target}) => {
  const clipped = target.closest('.clipped');
  if (!clipped) return;
  const isCut = [clipped, ...clipped.querySelectorAll('.begin')].some((part) => part.scrollWidth > part.clientWidth);
  clipped.title = isCut ? clipped.innerText : '';
});
addEventListener('keydown', (event) => {
  if (['Enter', ' '].includes(event.key) && event.target.matches('th.sortable')) {
    event.preventDefault();
    event.target.click();
  }
});
// What draws charts is big: it comes while the reader looks at the first page, not when the first chart is wanted.
addEventListener('load', () => import('nicegui-echart'));
