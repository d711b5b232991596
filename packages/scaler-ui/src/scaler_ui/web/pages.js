let here, kept;
// The reader's choice of colours. Quasar is loaded by scripts that follow this one.
const dark = new URLSearchParams(location.search).get('dark') ?? localStorage.getItem('dark');
addEventListener('DOMContentLoaded', () => dark && Quasar.Dark.set(dark !== '0'));
window.switchTheme = () => {
  Quasar.Dark.toggle();
  localStorage.setItem('dark', Quasar.Dark.isActive ? '1' : '0');
};
const nameOf = (row) => row.cells[0].innerText;
// Makes tables sortable by keyboard, and keeps the link of the current page visible on narrow screens. Slots are not used, because every update replaces them, and the focus is lost.
new MutationObserver(() => {
  for (const head of document.querySelectorAll('th.sortable')) {
    head.tabIndex = 0;
    const order = head.classList.contains('sort-desc') ? 'descending' : 'ascending';
    head.ariaSort = head.classList.contains('sorted') ? order : 'none';
  }
  for (const row of document.querySelectorAll('.opens tbody tr')) row.tabIndex = 0;
  if (kept && document.activeElement === document.body) {
    const rows = [...document.querySelectorAll('.opens tbody tr')];
    (rows.find((row) => nameOf(row) === kept.name) ?? rows[kept.at])?.focus({preventScroll: true});
  }
  const link = document.querySelector('nav [aria-current]');
  if (link && link !== here) link.parentElement.scrollLeft = link.offsetLeft - link.parentElement.clientWidth / 2;
  here = link;
}).observe(document.documentElement, {childList: true, subtree: true, attributeFilter: ['class', 'aria-current']});
// A row that moves or leaves when its table is renewed loses the focus, and nothing else gets it.
addEventListener('focusin', ({target}) => {
  kept = target.matches('.opens tbody tr') ? {name: nameOf(target), at: target.sectionRowIndex} : null;
});
addEventListener('pointerdown', () => { kept = null; });
addEventListener('mouseover', ({target}) => {
  if (target.matches('.clipped')) target.title = target.scrollWidth > target.clientWidth ? target.innerText : '';
});
addEventListener('keydown', (event) => {
  if (['Enter', ' '].includes(event.key) && event.target.matches('th.sortable, .opens tbody tr')) {
    event.preventDefault();
    event.target.click();
  }
});
// What draws charts is big: it comes while the reader looks at the first page, not when the first chart is wanted.
addEventListener('load', () => import('nicegui-echart'));
