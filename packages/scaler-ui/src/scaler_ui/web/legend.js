// The colours of functions, whose names are links; with switches, the reader can hide and show each.
export default {
  template: `<div class="legend" role="list" aria-label="colours of functions">
    <div v-for="entry in entries" :key="entry.name" class="clipped" role="listitem"
      :style="{ '--colour': entry.colour }"
      ><input v-if="switches" type="checkbox" :checked="entry.shown" :aria-label="'show ' + entry.name"
        @change="$emit('switch', { name: entry.name, shown: $event.target.checked })"
      ><a class="nicegui-link" :href="entry.address">{{ entry.name }}</a></div>
  </div>`,
  props: { entries: Array, switches: Boolean },
};
